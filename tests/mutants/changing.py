"""Changing one thing in a function: a comparison, an operand, a number, a condition, a returned value or a statement.

A change is made in the code of the function, wherever it has been imported already. Decorators, defaults, annotations
and texts are not changed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NOT_WALKED = ("decorator_list", "returns", "annotation", "type_params")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class CodeMutant:
    """One change of one function of a module."""

    path: str  # relative to the root of the project
    name: str  # of the function, with its class
    line: int
    lines: range  # of the statement; a compound statement counts up to its body
    number: int  # among the changes of the module
    shown: str
    key: str  # the same as long as the statement is

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}: {self.shown}"


@dataclass(frozen=True)
class _Site:
    name: str
    statement: ast.stmt
    node: ast.AST
    new: ast.AST
    replace: Callable[[ast.AST], None]

    @property
    def shown(self) -> str:
        return f"{_shortened(self.node)} -> {_shortened(self.new)}"


def mutants_in(path: str, source: str) -> list[CodeMutant]:
    found, seen = [], Counter[str]()
    for number, site in enumerate(_sites(ast.parse(source))):
        identity = f"{path} {site.name} {site.shown} {ast.unparse(site.statement)}"
        seen[identity] += 1
        key = hashlib.sha256(f"{identity} {seen[identity]}".encode()).hexdigest()[:12]
        line = getattr(site.node, "lineno", site.statement.lineno)
        found.append(CodeMutant(path, site.name, line, _lines(site.statement), number, site.shown, key))
    return found


def changed(source: str, mutant: CodeMutant) -> ast.Module:
    """The module with this change."""
    tree = ast.parse(source)
    site = list(_sites(tree))[mutant.number]
    site.replace(ast.copy_location(site.new, site.node))
    return ast.fix_missing_locations(tree)


def put_in_place(mutant: CodeMutant, module: ModuleType) -> None:
    """Give the function of this module the changed code, for all that have imported it."""
    function, code = function_and_code(mutant, module)
    function.__code__ = code


def function_and_code(mutant: CodeMutant, module: ModuleType) -> tuple[FunctionType, CodeType]:
    file = str(module.__file__)
    function = _function(module, mutant.name)
    [code] = _codes(compile(changed(Path(file).read_text(), mutant), file, "exec"), function.__code__)
    return function, code


def _function(module: ModuleType, name: str) -> FunctionType:
    owner: Any = module
    for part in name.split("."):
        owner = vars(owner)[part]
    if isinstance(owner, property):
        owner = owner.fget
    if isinstance(owner, staticmethod | classmethod):
        owner = owner.__func__
    if hasattr(owner, "cache_clear"):
        owner.cache_clear()
    function = inspect.unwrap(owner)
    assert isinstance(function, FunctionType)
    return function


def _codes(code: CodeType, old: CodeType) -> list[CodeType]:
    """The code in this code that begins where the old one did."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    is_it = (code.co_name, code.co_firstlineno) == (old.co_name, old.co_firstlineno)
    return [code] if is_it else [found for one in inner for found in _codes(one, old)]


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)


def _shortened(node: ast.AST) -> str:
    text = " ".join((f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else ast.unparse(node)).split())
    return text if len(text) <= 100 else f"{text[:100]}..."


def _sites(tree: ast.Module) -> Iterator[_Site]:
    """Every change of every function, always in the same order; what is within a function belongs to the outermost."""

    def walk(node: ast.AST, names: tuple[str, ...], name: str, statement: ast.stmt | None) -> Iterator[_Site]:
        if isinstance(node, Function | ast.ClassDef) and not name:
            names = (*names, node.name)
            name = ".".join(names) if isinstance(node, Function) else ""
        for child, replace in _children(node):
            within = child if isinstance(child, ast.stmt) else statement
            if name and within is not None:
                yield from (_Site(name, within, child, new, replace) for new in _instead_of(child))
            yield from walk(child, names, name, within)

    yield from walk(tree, (), "", None)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    for field, value in ast.iter_fields(node):
        if field in _NOT_WALKED or isinstance(node, ast.JoinedStr | ast.arguments):
            continue
        if isinstance(value, ast.AST):
            yield value, lambda new, field=field: setattr(node, field, new)  # type: ignore[misc]
        elif isinstance(value, list):
            for place, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield item, lambda new, value=value, place=place: value.__setitem__(place, new)  # type: ignore[misc]


def _instead_of(node: ast.AST) -> Iterator[ast.AST]:
    """What this node is replaced with, once for each change."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _SWAPPED:
            yield ast.Compare(left, [_SWAPPED[type(operator)]()], [right])  # type: ignore[list-item]
        case ast.BoolOp(operator, values):
            for value in values:
                rest = [other for other in values if other is not value]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, operator, right) if type(operator) in _SWAPPED and not _is_type(node):
            yield ast.BinOp(left, _SWAPPED[type(operator)](), right)  # type: ignore[arg-type]
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as number):
            yield ast.Constant(number + 1)
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.If(test, body, orelse) if _is_bare(test):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test, body, orelse) if _is_bare(test):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.comprehension(target, iterated, [_, *_] as conditions, is_async):
            for condition in conditions:
                yield ast.comprehension(target, iterated, [one for one in conditions if one is not condition], is_async)
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()


def _is_bare(test: ast.expr) -> bool:
    """Whether nothing in this condition is changed anyway."""
    return isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Subscript)


def _is_type(node: ast.BinOp) -> bool:
    """``int | None``: as an argument of isinstance."""
    return isinstance(node.op, ast.BitOr) and all(
        isinstance(side, ast.Attribute | ast.Name) and ast.unparse(side).rpartition(".")[2][:1].isupper()
        and not ast.unparse(side).isupper()
        for side in (node.left, node.right)
    )  # fmt: skip
