"""Numbers of requirements: each that is cited exists, each that exists is proved, and the page lists them."""

from __future__ import annotations

import re

import pytest

from .requirements import (
    DATA,
    NUMBER,
    PAGE,
    ROOT,
    citations,
    numbers_in,
    page,
    places_by_number,
    proofs,
    read_requirements,
)

REQUIREMENTS = read_requirements()
LINK = re.compile(r"requirements\.md#(\w+)")


def test_the_page_lists_every_number_with_its_proof():  # G18
    before, text = PAGE.read_text() if PAGE.exists() else "", page()
    PAGE.write_text(text)
    assert before == text, f"{PAGE.name} was written anew: read what changed, and commit it"


def test_every_cited_number_exists():
    cited = places_by_number(("tests", "example_project"))
    assert {number: places for number, places in cited.items() if number not in REQUIREMENTS.numbers} == {}


def test_the_package_cites_no_number():
    """Who reads the package has its tests at hand only in a checkout."""
    assert places_by_number(("django_jobqueue",)) == {}


def test_pages_name_numbers_only_as_links():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path != PAGE and "_build" not in path.parts]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in pages}
    linked = {number.upper() for text in texts.values() for number in LINK.findall(text)}
    bare = {name: re.findall(r"\bR\d{3}\b", re.sub(r"\[R\d{3}\]\([^)]*\)", "", text)) for name, text in texts.items()}

    assert {name: numbers for name, numbers in bare.items() if numbers} == {}
    assert linked <= set(REQUIREMENTS.numbers)


def test_every_number_has_a_proof_unless_it_says_that_it_has_none():
    proved = {number for number, tests in proofs().items() if tests} | set(REQUIREMENTS.pages)
    assert [number for number in REQUIREMENTS.numbers if number not in proved] == REQUIREMENTS.untested


def test_every_requirement_is_listed_in_its_order():
    assert [number for number in REQUIREMENTS.numbers if number.startswith("R")] == [f"R{n:03}" for n in range(1, 393)]
    for letter in "BFGI":
        counted = [int(number[1:]) for number in REQUIREMENTS.numbers if number.startswith(letter)]
        assert counted == sorted(set(counted))
    assert all(NUMBER.fullmatch(number) for number in REQUIREMENTS.numbers)


@pytest.mark.parametrize("name", sorted({name for names in REQUIREMENTS.pages.values() for name in names}))
def test_the_pages_that_prove_something_exist(name):
    assert (DATA.parent.parent / name).is_file()


def test_sentences_are_sentences():
    for sentences in REQUIREMENTS.chapters.values():
        for number, sentence in sentences.items():
            assert re.fullmatch(r"[A-Z`].*\.", sentence), number
            assert "|" not in sentence, number


def test_a_range_covers_what_is_between():
    assert set(numbers_in("R045-R048, F9 and G10")) == {"R045", "R046", "R047", "R048", "F9", "G10"}
    assert set(numbers_in("noqa: F401 E501 A1")) == set()


def test_comments_cite_for_tests_in_and_below_them():
    source = '''"""Everything (R001)."""
HOLDS = {
    "here": 1,  # R002
}
def test_a():  # R003
    assert 1  # R004
# ------ locks: F5
def test_b(): pass
# R006
def test_c(): pass
# ------
def test_d(): pass
'''
    assert set(citations(source, "t.py")) == {
        ("R001", "t.py"),
        ("R002", "t.py::test_a"),
        ("R003", "t.py::test_a"),
        ("R004", "t.py::test_a"),
        ("F5", "t.py::test_b"),
        ("F5", "t.py::test_c"),
        ("R006", "t.py::test_c"),
    }
