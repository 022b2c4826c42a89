"""Encode the data of jobs as JSON, strictly: an error names the path of the value that cannot be stored.

All checks run before any SQL, because an error of an INSERT would abort the caller's transaction.
jsonb changes some numbers: 1e300 is read back as an int, -0.0 as 0.0.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.functional import Promise

from .exceptions import InvalidData
from .text import flaw_of, shown

MAX_DIGITS = 4300  # Python's default: a longer int could be stored, but other processes could not read it
_SCALARS = frozenset({int, float, bool, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_MAX_BITS = int(MAX_DIGITS * math.log2(10))


def _dumper() -> Callable[[Any], str]:
    """A function that encodes plain types as compact JSON. Circular references are excluded before it is called.

    ``JSONEncoder.encode`` creates a C encoder for every call, which takes longer than encoding the data of a small job.
    So where Python has a C encoder, it is created once.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    chunks = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda data: "".join(chunks(data, 0))


dump = _dumper()  # the JSON text of plain data


def encode(
    data: Any,
    *,
    root: str = "data",
    max_bytes: int,
    max_depth: int,
    encoder: type[json.JSONEncoder] | None = None,
) -> str:
    """JSON text for a jsonb column; ``InvalidData`` names the path of a value that cannot be stored.

    Only ``default()`` of ``encoder`` is used, and what it returns must satisfy the same rules.
    """
    text = quick_dump(data, max_bytes, max_depth)
    if text is None:
        text = _Strict(root, max_bytes, max_depth, encoder).text_of(data)
    if (size := size_of(text)) > max_bytes:
        raise InvalidData(root, f"is {size:,} bytes; the limit is {max_bytes:,}", hint=_TOO_LARGE)
    return text


def decode(text: str | None) -> Any:
    """The value of a jsonb column, from the text that the database sent."""
    return None if text is None else _decode(text)[0]


_decode = json.JSONDecoder().raw_decode  # json.loads skips white space first, which takes as long again


def quick_dump(data: Any, max_bytes: int, max_depth: int) -> str | None:
    """The JSON text of data of plain types; ``None`` if ``_Strict`` has to check the data."""
    if not 0 < sys.get_int_max_str_digits() <= MAX_DIGITS or not _evident(data, max_bytes, max_depth):
        return None
    try:
        text = dump(data)
        size_of(text)  # raises for lone surrogates
    except (ValueError, TypeError, RecursionError):
        return None
    # Either NUL or the valid text backslash-u0000: _Strict tells them apart.
    return None if "\\u0000" in text else text


def size_of(text: str) -> int:
    """How many bytes the text takes; ``UnicodeEncodeError`` for lone surrogates."""
    return len(text) if text.isascii() else len(text.encode())


def _evident(data: Any, max_bytes: int, max_depth: int) -> bool:
    """Whether the data has only plain JSON types, is not nested too deeply and has not too many characters.

    It walks level by level, so that counting the depth costs nothing. Each item takes at least two bytes, itself and a
    separator: this bounds the walk, also through circular references and shared parts.
    """
    level: list[Any] = [[data]]
    room = max_bytes + 2
    while level:
        if max_depth < 0:
            return False
        max_depth -= 1
        below: list[Any] = []
        for node in level:
            room -= 2 * len(node)
            if room < 0:
                return False
            if type(node) is dict:
                for key in node:
                    if type(key) is not str:
                        return False
                    room -= len(key)
                values: Iterable[Any] = node.values()
            else:
                values = node
            for value in values:
                kind = type(value)
                if kind is str:
                    room -= len(value)
                elif kind in _CONTAINERS:
                    below.append(value)
                elif kind not in _SCALARS:
                    return False
        level = below
    return room >= 0


class _Strict:
    """Copies data as plain types. Raises ``InvalidData`` with the path of the first value that is not valid."""

    def __init__(self, root: str, max_bytes: int, max_depth: int, encoder: type[json.JSONEncoder] | None) -> None:
        self.root, self.max_bytes, self.max_depth = root, max_bytes, max_depth
        self.room = max_bytes
        self.default = None if encoder is None else encoder().default
        self.above: set[int] = set()  # ids of the containers around the current value

    def text_of(self, data: Any) -> str:
        try:
            return dump(self.value(data, self.root, 0))
        except RecursionError:
            raise _invalid(self.root, "is nested too deeply", hint=_FLATTER) from None
        except _NoRoom:
            raise _invalid(self.root, _size_problem(data, self.max_bytes), hint=_TOO_LARGE) from None

    def value(self, value: Any, path: str, depth: int) -> Any:
        self.take(1)
        # Not isinstance(): a lazy object claims to be of the type it stands for, but cannot be encoded.
        kind = type(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return self.text(value, path, "the text")
        if issubclass(kind, int):
            return _short_int(value, path)
        if issubclass(kind, float):
            return _finite(value, path)
        return self.enclosed(value, path, depth + 1)

    def enclosed(self, value: Any, path: str, depth: int) -> Any:
        if id(value) in self.above:
            raise _invalid(path, "is a circular reference", hint="JSON has no references: send ids.")
        self.above.add(id(value))
        try:
            if issubclass(type(value), dict):
                return self.mapping(value, path, self.checked(depth, path))
            if issubclass(type(value), list | tuple):
                return self.sequence(value, path, self.checked(depth, path))
            return self.value(self.converted(value, path), path, depth - 1)
        finally:
            self.above.discard(id(value))

    def checked(self, depth: int, path: str) -> int:
        if depth <= self.max_depth:
            return depth
        raise _invalid(path, f"is nested more than {self.max_depth} levels deep", hint=_FLATTER)

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
        self.need(4 * len(value))
        plain = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _invalid(path, f"the key {shown(key)} is not text", hint="Use str(key).")
            self.text(key, path, "the key")
            plain[key] = self.value(item, _member(path, key), depth)
        return plain

    def sequence(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
        self.need(2 * len(value))
        return [self.value(item, f"{path}[{place}]", depth) for place, item in enumerate(value)]

    def converted(self, value: Any, path: str) -> Any:
        if self.default is None:
            raise _not_json(value, path, "name an encoder in JOBQUEUE['ENCODER'] that converts it")
        try:
            return self.default(value)
        except (TypeError, ValueError) as error:
            raise _not_json(value, path, "convert it in default() of JOBQUEUE['ENCODER']") from error

    def text(self, value: str, path: str, what: str) -> str:
        self.take(len(value))
        if flaw := flaw_of(value):
            raise _invalid(path, f"{what} {shown(value)} {flaw}", hint="Remove or replace it.")
        return value

    def need(self, size: int) -> None:
        if size > self.room:
            raise _NoRoom

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _NoRoom


class _NoRoom(Exception):
    """The data is larger than allowed."""


_TOO_LARGE = "Store it elsewhere (a file, a row) and send its id."
_FLATTER = "Send data with fewer levels, or an id."


def _invalid(path: str, problem: str, *, hint: str) -> InvalidData:
    shown = path if len(path) <= 200 else f"{path[:120]}…{path[-60:]}"
    return InvalidData(shown, problem, hint=hint)


def is_convertible(value: int) -> bool:
    """Whether Python can write and read an int of that length."""
    try:
        return value.bit_length() <= _MAX_BITS and bool(int.__repr__(value))
    except ValueError:  # the limit of this process may be lower than the usual one
        return False


def long_int_text(value: int) -> str:
    """Describes an int that has too many digits to be written."""
    return f"an int of {value.bit_length():,} bits"


def _short_int(value: int, path: str) -> int:
    if is_convertible(value):
        return value
    raise _invalid(path, f"{long_int_text(value)} is too long", hint="Send it as text.")


def _finite(value: float, path: str) -> float:
    if math.isfinite(value):
        return value
    raise _invalid(path, f"{special_float_text(value)} is not JSON", hint="Send None or a string instead.")


def special_float_text(value: float) -> str:
    """The JavaScript name of NaN or of an infinite float."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _member(path: str, key: str) -> str:
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{shown(key)}]"


def _not_json(value: Any, path: str, remedy: str) -> InvalidData:
    hint = next((hint for kinds, hint in _HINTS if isinstance(value, kinds)), "")
    if not hint and dataclasses.is_dataclass(value):
        hint = "Send dataclasses.asdict(value)."
    problem = f"a value of type {type(value).__name__} is not JSON"
    return _invalid(path, problem, hint=f"{hint} Or {remedy}." if hint else f"{remedy[0].upper()}{remedy[1:]}.")


_HINTS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((Model,), "Send its pk and load the row in the handler."),
    ((QuerySet,), "Send a list of pks and load the rows in the handler."),
    ((datetime.date, datetime.time), "Send value.isoformat()."),
    ((datetime.timedelta,), "Send value.total_seconds()."),
    ((Decimal, UUID, Promise), "Send str(value)."),
    ((bytes, bytearray, memoryview), "Send text, for example base64."),
    ((set, frozenset), "Send a list, for example sorted(value)."),
    ((Enum,), "Send value.value."),
    ((Mapping,), "Send dict(value)."),
    ((Iterator,), "Send list(value)."),
)


def _size_problem(data: Any, max_bytes: int) -> str:
    size = least_size(data)
    if size is None or size <= max_bytes:
        return f"is larger than {max_bytes:,} bytes"
    return f"is at least {size:,} bytes; the limit is {max_bytes:,}"


def least_size(data: Any, *, max_items: int = 20_000) -> int | None:
    """The least number of bytes that the JSON text can have; ``None`` if counting takes too long."""
    size, stack = 0, [data]
    for _ in range(max_items):
        if not stack:
            return size
        value = stack.pop()
        if isinstance(value, str):
            size += len(value) + 2
        elif isinstance(value, dict | list | tuple):
            size += len(value) + 1  # brackets and commas
            if len(value) > max_items:
                return None
            stack.extend(value)
            if isinstance(value, dict):
                size += len(value)  # colons
                stack.extend(value.values())
        else:
            size += 1
    return None
