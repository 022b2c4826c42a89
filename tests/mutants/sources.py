"""The SQL in the source text of a module: what can be cut out of it, and marks by which that is done when it is sent.

Any string is looked at, wherever it stands, except docstrings: a constant, an f-string, a fragment from which others
are composed. So no module and no constant is named here.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from .cutting import Cut, cuts

_CUT = re.compile(r"/\*cut (\w+)\*/")
_FIRST_STAND_IN = 0xE000  # private characters stand for what an f-string fills in
_CONVERSIONS = {115: "{!s}", 114: "{!r}", 97: "{!a}"}

Literal = ast.Constant | ast.JoinedStr
Change = Callable[[str], str]


@dataclass(frozen=True)
class SqlMutant:
    """One cut of one string of one module."""

    path: str  # relative to the root of the project
    name: str  # of the constant or the function that the string is part of
    line: int
    literal: int  # which string of the module
    cut: Cut
    shown: str  # what is cut out
    key: str  # the same as long as the text of the string is

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}: without {self.cut.kind}: {self.shown}"


def mutants_in(path: str, source: str) -> list[SqlMutant]:
    tree, found, seen = ast.parse(source), [], Counter[str]()
    names = _names(tree)
    for number, literal in enumerate(_literals(tree)):
        text, filled_in = _text(literal)
        for cut in cuts(text):
            shown = " ".join(_shown(text[cut.start : cut.end], filled_in).split())
            identity = f"{path} {names[literal]} {cut.kind} {shown} {_shown(text, filled_in)}"
            seen[identity] += 1
            key = hashlib.sha256(f"{identity} {seen[identity]}".encode()).hexdigest()[:12]
            found.append(SqlMutant(path, names[literal], literal.lineno, number, cut, shown, key))
    return found


def marked(source: str, mutants: Iterable[SqlMutant]) -> str:
    """The module's source with comments in its SQL where each of these mutants' cuts begins and ends."""
    marks: dict[int, list[tuple[int, str]]] = {}
    for mutant in mutants:
        begin, end = (mutant.cut.start, f" /*cut {mutant.key}*/ "), (mutant.cut.end, f" /*end {mutant.key}*/ ")
        marks.setdefault(mutant.literal, []).extend((begin, end))
    return _rewritten(source, {number: partial(_inserted, of_literal) for number, of_literal in marks.items()})


def _inserted(marks: list[tuple[int, str]], text: str) -> str:
    for place, mark in sorted(marks, reverse=True):
        text = f"{text[:place]}{mark}{text[place:]}"
    return text


def marks_in(sql: str) -> set[str]:
    """The keys of the mutants whose cuts are marked in this SQL."""
    return set(_CUT.findall(sql))


def mutated(sql: str, mutant: SqlMutant) -> str:
    """The SQL that a marked module composed, with this mutant's cut wherever it is marked."""
    return re.sub(rf"/\*cut {mutant.key}\*/.*?/\*end {mutant.key}\*/", mutant.cut.instead, sql, flags=re.DOTALL)


def _rewritten(source: str, changes: dict[int, Change]) -> str:
    """Statements with a changed string are written anew, f-strings as joins, because not every f-string can be."""
    tree = ast.parse(source)
    literals = list(_literals(tree))
    changed = {literals[number]: change for number, change in changes.items()}
    lines = source.splitlines(keepends=True)
    for statement in reversed(tree.body):
        if any(node in changed for node in ast.walk(statement) if isinstance(node, Literal)):
            first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
            new = ast.fix_missing_locations(_Rewriting(changed).visit(statement))
            lines[first - 1 : statement.end_lineno] = [ast.unparse(new) + "\n"]
    return "".join(lines)


class _Rewriting(ast.NodeTransformer):
    def __init__(self, changed: dict[Literal, Change]) -> None:
        self.changed = changed

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node not in self.changed:
            return node
        return ast.Constant(self.changed[node](str(node.value)))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        text, filled_in = _text(node)
        new = self.changed[node](text) if node in self.changed else text
        pieces: list[ast.expr] = []
        for is_filled_in, characters in groupby(new, key=filled_in.__contains__):
            if is_filled_in:
                pieces += [self._formatted(filled_in[character]) for character in characters]
            else:
                pieces.append(ast.Constant("".join(characters)))
        join = ast.Attribute(ast.Constant(""), "join", ast.Load())
        return ast.Call(join, [ast.Tuple(pieces, ast.Load())], [])

    def _formatted(self, node: ast.FormattedValue) -> ast.expr:
        template = _CONVERSIONS.get(node.conversion, "{}")
        arguments = [self.visit(node.value)]
        if node.format_spec is not None:
            template = template.replace("}", ":{}}")
            arguments.append(self.visit(node.format_spec))
        return ast.Call(ast.Attribute(ast.Constant(template), "format", ast.Load()), arguments, [])


def _literals(tree: ast.AST) -> Iterator[Literal]:
    """The strings outside docstrings, always in the same order; those within an f-string's values come after it."""
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.Constant):
        if isinstance(tree.value, str):
            yield tree
        return
    if isinstance(tree, ast.JoinedStr):
        yield tree
        for value in tree.values:
            if isinstance(value, ast.FormattedValue):
                yield from _literals(value.value)
        return
    for child in ast.iter_child_nodes(tree):
        yield from _literals(child)


def _text(literal: Literal) -> tuple[str, dict[str, ast.FormattedValue]]:
    """The text, with a character for each value that is filled in."""
    if isinstance(literal, ast.Constant):
        return str(literal.value), {}
    text = ""
    filled_in: dict[str, ast.FormattedValue] = {}
    for value in literal.values:
        if isinstance(value, ast.FormattedValue):
            character = chr(_FIRST_STAND_IN + len(filled_in))
            filled_in[character] = value
            text += character
        elif isinstance(value, ast.Constant):
            text += str(value.value)
    return text, filled_in


def _shown(text: str, filled_in: dict[str, ast.FormattedValue]) -> str:
    for character, value in filled_in.items():
        text = text.replace(character, f"{{{ast.unparse(value.value)}}}")
    return text


def _names(tree: ast.Module) -> dict[ast.AST, str]:
    """By string, the constant or the function it is part of."""
    names: dict[ast.AST, str] = {}

    def walk(node: ast.AST, name: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}".lstrip(".")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = f"{name}.{node.targets[0].id}".lstrip(".")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = f"{name}.{node.target.id}".lstrip(".")
        names[node] = name
        for child in ast.iter_child_nodes(node):
            walk(child, name)

    walk(tree, "")
    return names
