from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from .__main__ import FUNCTIONS, PACKAGE, ROOT
from .changing import function_and_code, mutants_in, put_in_place

SOURCE = '''
from functools import cache

LIMIT = 1 + 1


def small(number: int = 5) -> str:
    """Not SQL: 1 == 2."""
    return f"{number + 1}" if number < LIMIT and not number == 3 else ""


class Counter:
    total = 0

    @property
    def doubled(self):
        return self.total * 2

    @classmethod
    def counted(cls, numbers):
        def add(number):
            cls.total += number

        for number in numbers:
            if not number:
                continue
            if bool(number):
                add(number + 0)
        return True


@cache
def even(number):
    if number < 0:
        raise ValueError("negative")
    return number % 2 == 0
'''


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "sample.py"
    path.write_text(SOURCE)
    module = ModuleType("sample")
    module.__file__ = str(path)
    exec(compile(SOURCE, path, "exec"), vars(module))
    return module


def test_each_part_of_a_function_is_changed_and_nothing_else():
    assert [(mutant.name, mutant.shown) for mutant in mutants_in("sample.py", SOURCE) if mutant.name == "small"] == [
        ("small", "return f'{number + 1}' if number < LIMIT and (not number == 3) else '' -> return None"),
        ("small", "number < LIMIT and (not number == 3) -> not number == 3"),
        ("small", "number < LIMIT and (not number == 3) -> number < LIMIT"),
        ("small", "number < LIMIT -> number <= LIMIT"),
        ("small", "not number == 3 -> number == 3"),
        ("small", "number == 3 -> number != 3"),
        ("small", "3 -> 4"),
    ]


def test_conditions_and_statements_are_changed():
    assert [mutant.shown for mutant in mutants_in("sample.py", SOURCE) if mutant.name == "Counter.counted"] == [
        "cls.total += number -> pass",
        "not number -> number",
        "continue -> pass",
        "if bool(number) -> if not bool(number)",
        "add(number + 0) -> pass",
        "number + 0 -> number - 0",
        "0 -> 1",
        "True -> False",
    ]


def test_a_change_is_selected_by_the_lines_of_its_statement():
    lines = SOURCE.splitlines()
    for mutant in mutants_in("sample.py", SOURCE):
        assert mutant.line in mutant.lines
        assert lines[mutant.line - 1].strip()


def test_mutants_have_keys_of_their_own():
    mutants = mutants_in("sample.py", SOURCE)
    assert len({mutant.key for mutant in mutants}) == len(mutants)


def test_what_was_imported_before_has_the_change(module):
    small, counted, even = module.small, module.Counter.counted, module.even
    counter = module.Counter()
    assert (small(2), counted([1, 2]), counter.doubled, even(0)) == ("", True, 6, True)

    for mutant in mutants_in("sample.py", SOURCE):
        if mutant.shown in ("number < LIMIT -> number <= LIMIT", "True -> False", "self.total * 2 -> self.total / 2"):
            put_in_place(mutant, module)
        if mutant.shown == "number % 2 == 0 -> number % 2 != 0":
            put_in_place(mutant, module)

    assert (small(2), counted([]), counter.doubled, even(0)) == ("3", False, 1.5, False)


@pytest.mark.parametrize("path", FUNCTIONS)
def test_each_function_of_these_modules_can_be_changed(path):
    module = import_module(f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}")
    mutants = mutants_in(f"{PACKAGE}/{path}", (ROOT / PACKAGE / path).read_text())

    assert mutants
    for mutant in {mutant.name: mutant for mutant in mutants}.values():
        function, code = function_and_code(mutant, module)
        assert code != function.__code__, mutant
        assert code.co_freevars == function.__code__.co_freevars, mutant
