from __future__ import annotations

from .__main__ import FUNCTIONS, PACKAGE, ROOT, report
from .explained import Explanation, explanations, is_explained
from .judging import KILLED, SURVIVED, Verdict, mutants_of
from .sources import mutants_in

MUTANTS = mutants_in("module.py", 'SQL = "SELECT 1 WHERE a AND b ORDER BY c"')


def test_each_explanation_is_of_a_mutant_that_there_is():
    mutants = mutants_of(ROOT, PACKAGE, FUNCTIONS)

    for explanation in explanations():
        assert any(explanation.is_of(mutant) for mutant in mutants), explanation
        assert explanation.because.endswith(".")


def test_an_explanation_names_mutants_without_their_lines():
    explanation = Explanation(r"^module\.py SQL: without AND term: ", "It cannot make a difference.")

    assert [is_explained(mutant, [explanation]) for mutant in MUTANTS] == [True, True, False]


def test_only_survivors_that_are_not_explained_make_the_command_fail(monkeypatch, capsys):
    monkeypatch.setattr("tests.mutants.__main__.explanations", lambda: [Explanation("AND term", "Speed only.")])
    first, second, order = MUTANTS
    known = {mutant.key: Verdict(mutant.key, SURVIVED, "", 3, 1.0) for mutant in (first, second)}

    assert report(MUTANTS, known | {order.key: Verdict(order.key, KILLED, "a test", 3, 1.0)}) == 0
    assert report(MUTANTS, known | {order.key: Verdict(order.key, SURVIVED, "", 3, 1.0)}) == 1
    assert "survived (3 tests): module.py:1 SQL: without ORDER BY" in capsys.readouterr().out
