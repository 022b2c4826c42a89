from __future__ import annotations

import re
from typing import Any

import pytest

from .cutting import AND, FOR_UPDATE, ORDER_BY, SKIP_LOCKED, cuts
from .judging import Recorded, chosen
from .sources import SqlMutant, marked, marks_in, mutants_in, mutated

SOURCE = '''
"""A module. Not SQL: WHERE a AND b."""

STATE = "active"
IS_OURS = f"state = '{STATE}' AND owner = %s"
PLAIN = "SELECT id FROM job WHERE " + f"{IS_OURS} ORDER BY id"


def lowest(hold):
    """Not SQL either: ORDER BY id."""
    return (
        f"SELECT seq FROM job WHERE {IS_OURS}"
        f" AND hold {hold!r:>10} LIMIT 1"
    )
'''


def without(kind: str, text: str) -> list[str]:
    """The text after each cut of this kind."""
    return [tidied(cut.applied_to(text)) for cut in cuts(text) if cut.kind == kind]


def tidied(text: str) -> str:
    return " ".join(text.split()).replace("( ", "(").replace(" )", ")")


def values(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(source, names)
    return names


def test_each_term_is_cut_with_the_and_that_joins_it():
    assert without(AND, "WHERE a = 1 AND b < 2 AND NOT c ORDER BY d") == [
        "WHERE b < 2 AND NOT c ORDER BY d",
        "WHERE a = 1 AND NOT c ORDER BY d",
        "WHERE a = 1 AND b < 2 ORDER BY d",
    ]


def test_a_term_ends_where_its_parenthesis_does():
    assert without(AND, "SELECT (SELECT 1 WHERE a AND b), c") == [
        "SELECT (SELECT 1 WHERE b), c",
        "SELECT (SELECT 1 WHERE a), c",
    ]


def test_a_term_in_parentheses_is_cut_as_a_whole_and_in_parts():
    assert without(AND, "WHERE (a AND b OR c) AND d") == [
        "WHERE d",
        "WHERE (b OR c) AND d",
        "WHERE (a OR c) AND d",
        "WHERE (a AND b OR c)",
    ]


def test_a_case_is_a_parenthesis():
    assert without(AND, "CASE WHEN a AND b THEN c ELSE d END") == [
        "CASE WHEN b THEN c ELSE d END",
        "CASE WHEN a THEN c ELSE d END",
    ]
    assert without(AND, "WHERE a AND CASE WHEN b THEN c END LIMIT 1")[1] == "WHERE a LIMIT 1"


def test_the_and_of_between_joins_no_terms():
    assert without(AND, "WHERE a BETWEEN 1 AND 2") == []
    assert without(AND, "WHERE a BETWEEN 1 AND 2 AND b") == ["WHERE b", "WHERE a BETWEEN 1 AND 2"]


def test_distinct_from_belongs_to_its_term():
    assert without(AND, "WHERE a AND b IS DISTINCT FROM c")[1] == "WHERE a"


def test_a_fragment_may_begin_or_end_with_a_term():
    assert without(AND, "state = 1 AND hold IS NULL") == ["hold IS NULL", "state = 1"]
    assert without(AND, " AND hold IS NULL") == [""]
    assert without(AND, " AND ") == []


def test_what_is_quoted_is_not_sql():
    assert cuts("SELECT 'it is x AND y ORDER BY z SKIP LOCKED' AS text") == []
    assert without(AND, "WHERE a = ' AND ' AND b") == ["WHERE b", "WHERE a = ' AND '"]


def test_a_term_with_positional_parameters_still_takes_them():
    assert without(AND, "WHERE id = %s AND (%s::bigint IS NULL OR b = %(b)s)") == [
        "WHERE ((%s)::text IS NULL OR true) AND (%s::bigint IS NULL OR b = %(b)s)",
        "WHERE id = %s AND ((%s::bigint)::text IS NULL OR true)",
    ]


@pytest.mark.parametrize("rest", ("LIMIT 1", "FOR UPDATE", ") x", "UNION ALL SELECT 2", "ON CONFLICT DO NOTHING", ""))
def test_an_order_ends_before_what_follows_it(rest):
    text = f"(SELECT a ORDER BY b DESC NULLS LAST, f(c, d) {rest}"
    assert without(ORDER_BY, text) == [tidied(f"(SELECT a {rest}")]


def test_a_lock_is_cut_as_a_whole_and_without_its_skipping():
    text = "SELECT a LIMIT 1 FOR UPDATE OF job SKIP LOCKED) b"
    assert without(FOR_UPDATE, text) == ["SELECT a LIMIT 1) b"]
    assert without(SKIP_LOCKED, text) == ["SELECT a LIMIT 1 FOR UPDATE OF job) b"]


def test_strings_are_found_by_what_they_say_and_docstrings_are_not_sql():
    assert [(mutant.name, mutant.shown) for mutant in mutants_in("module.py", SOURCE)] == [
        ("IS_OURS", "state = '{STATE}' AND"),
        ("IS_OURS", "AND owner = %s"),
        ("PLAIN", "ORDER BY id"),
        ("lowest", "{IS_OURS} AND"),
        ("lowest", "AND hold {hold}"),
    ]


def test_a_marked_module_says_in_its_sql_which_mutants_it_has():
    mutants = mutants_in("module.py", SOURCE)

    names = values(marked(SOURCE, mutants))

    assert marks_in(names["PLAIN"]) == {mutant.key for mutant in mutants[:3]}
    assert marks_in(names["lowest"]("x")) == {mutant.key for mutant in mutants if mutant.name != "PLAIN"}


def test_the_cut_is_made_in_what_a_marked_module_composes():
    mutants = mutants_in("module.py", SOURCE)
    names = values(marked(SOURCE, mutants))

    def sent(sql: str, mutant: SqlMutant) -> str:
        return tidied(re.sub(r"/\*.*?\*/", "", mutated(sql, mutant)))

    assert sent(names["IS_OURS"], mutants[0]) == "owner = %s"
    assert sent(names["IS_OURS"], mutants[1]) == "state = 'active' AND ((%s)::text IS NULL OR true)"
    assert sent(names["PLAIN"], mutants[2]) == "SELECT id FROM job WHERE state = 'active' AND owner = %s"
    assert sent(names["lowest"]("x"), mutants[3]) == "SELECT seq FROM job WHERE hold 'x' LIMIT 1"
    assert sent(names["lowest"]("x"), mutants[2]) == tidied(values(SOURCE)["lowest"]("x"))


def test_mutants_have_keys_of_their_own():
    text = 'SQL = "(SELECT 1 WHERE a AND b) UNION (SELECT 1 WHERE a AND b)"'
    assert len({mutant.key for mutant in mutants_in("module.py", text)}) == 4


def test_the_quick_tests_that_send_a_statement_are_chosen_first():
    [mutant, *_] = mutants_in("module.py", SOURCE)
    quick, slow = (Recorded(name, seconds, True, frozenset({mutant.key})) for name, seconds in (("q", 0.1), ("s", 9.0)))
    failing = Recorded("f", 0.1, False, frozenset({mutant.key}))
    elsewhere = Recorded("e", 0.1, True, frozenset({"another"}))

    assert chosen(mutant, [slow, failing, elsewhere, quick], seconds=40) == [quick, slow]
    assert chosen(mutant, [slow, failing, elsewhere, quick], seconds=0.05) == [quick]
