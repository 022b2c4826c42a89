"""JSON and text on their way into the database: refused from a sender, cleaned from a handler.

All checks come before any SQL, because an error at INSERT would poison the caller's transaction.
jsonb rewrites some numbers: 1e300 comes back as an int, -0.0 as 0.0.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.functional import Promise

from .exceptions import InvalidData, InvalidOption

MAX_DIGITS = 4300  # Python's default: a longer int could be stored, and not read elsewhere
MAX_OUTPUT_DEPTH = 100
START_CHARS = 1_000  # how much of an output that is too large is kept
MAX_TAGS, MAX_TAG_LENGTH = 50, 100
MAX_QUEUE_NAME = 100

_SCALARS = frozenset({int, float, bool, type(None)})
_CONTAINERS = frozenset({dict, list, tuple})
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NAME_CHARACTER = re.compile(r"[A-Za-z0-9_./:-]")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,99}")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")
_MAX_BITS = int(MAX_DIGITS * math.log2(10))


def _dumper() -> Callable[[Any], str]:
    """Compact JSON, of plain types. Circles are found by the walk, so the encoder need not look for them.

    ``JSONEncoder.encode`` makes its C encoder anew for every call, which takes longer than a small job's data; so where
    there is one, it is made once.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    chunks = make(None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda data: "".join(chunks(data, 0))


_dump = _dumper()


def encode(
    data: Any,
    *,
    root: str = "data",
    max_bytes: int,
    max_depth: int,
    encoder: type[json.JSONEncoder] | None = None,
) -> str:
    """JSON text for a jsonb column; ``InvalidData`` names the path of what it cannot hold.

    Of ``encoder`` only ``default()`` is used, and what it returns is held to the same rules.
    """
    text = _quick(data, max_bytes, max_depth)
    if text is None:
        text = _Strict(root, max_bytes, max_depth, encoder).text_of(data)
    if (size := _size(text)) > max_bytes:
        raise InvalidData(root, f"is {size:,} bytes; the limit is {max_bytes:,}", hint=_TOO_LARGE)
    return text


def decode(text: str | None) -> Any:
    """What a jsonb column holds, as the database prints it."""
    return None if text is None else _decode(text)[0]


_decode = json.JSONDecoder().raw_decode  # json.loads looks for white space first, which costs as much again


def _quick(data: Any, max_bytes: int, max_depth: int) -> str | None:
    """The JSON text of data that is evidently fine; None when it needs a closer look."""
    if not 0 < sys.get_int_max_str_digits() <= MAX_DIGITS or not _evident(data, max_bytes, max_depth):
        return None
    try:
        text = _dump(data)
        _size(text)  # raises for lone surrogates
    except (ValueError, TypeError, RecursionError):
        return None
    # NUL, or the harmless text backslash-u0000: the closer look will tell.
    return None if "\\u0000" in text else text


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _evident(data: Any, max_bytes: int, max_depth: int) -> bool:
    """Whether only plain JSON types occur, not too deep, and of not too many characters.

    Level by level, so that depth costs nothing to count. An item takes at least two bytes, itself
    and a separator: that bounds the walk, also through circles and shared parts.
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
    """Walks data to find what is wrong with it, and where; a plain copy if nothing is."""

    def __init__(self, root: str, max_bytes: int, max_depth: int, encoder: type[json.JSONEncoder] | None) -> None:
        self.root, self.max_bytes, self.max_depth = root, max_bytes, max_depth
        self.room = max_bytes
        self.default = None if encoder is None else encoder().default
        self.above: set[int] = set()  # ids of what encloses the current value

    def text_of(self, data: Any) -> str:
        try:
            return _dump(self.value(data, self.root, 0))
        except RecursionError:
            raise _invalid(self.root, "is nested too deeply", hint=_FLATTER) from None
        except _NoRoom:
            raise _invalid(self.root, _size_problem(data, self.max_bytes), hint=_TOO_LARGE) from None

    def value(self, value: Any, path: str, depth: int) -> Any:
        self.take(1)
        # Not isinstance(): a lazy object claims to be what it stands for, and cannot be encoded.
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
                raise _invalid(path, f"the key {_shown(key)} is not text", hint="Use str(key).")
            self.text(key, path, "the key")
            plain[key] = self.value(item, _member(path, key), depth)
        return plain

    def sequence(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
        self.need(2 * len(value))
        return [self.value(item, f"{path}[{place}]", depth) for place, item in enumerate(value)]

    def converted(self, value: Any, path: str) -> Any:
        if self.default is None:
            raise _not_json(value, path)
        try:
            return self.default(value)
        except (TypeError, ValueError) as error:
            raise _not_json(value, path) from error

    def text(self, value: str, path: str, what: str) -> str:
        self.take(len(value))
        if flaw := _flaw(value):
            raise _invalid(path, f"{what} {_shown(value)} {flaw}", hint="Remove or replace it.")
        return value

    def need(self, size: int) -> None:
        if size > self.room:
            raise _NoRoom

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _NoRoom


class _NoRoom(Exception):
    """What is being walked is larger than allowed."""


_TOO_LARGE = "Store it elsewhere (a file, a row) and send its id."
_FLATTER = "Send something flatter, or an id."
_ENCODER = "Or name an encoder in JOBQUEUE['ENCODER']."


def _invalid(path: str, problem: str, *, hint: str) -> InvalidData:
    shown = path if len(path) <= 200 else f"{path[:120]}…{path[-60:]}"
    return InvalidData(shown, problem, hint=hint)


def _convertible(value: int) -> bool:
    try:
        return value.bit_length() <= _MAX_BITS and bool(int.__repr__(value))
    except ValueError:  # the limit of this process may be lower than the usual one
        return False


def _long_int(value: int) -> str:
    return f"an int of {value.bit_length():,} bits"


def _short_int(value: int, path: str) -> int:
    if _convertible(value):
        return value
    raise _invalid(path, f"{_long_int(value)} is too long", hint="Send it as text.")


def _finite(value: float, path: str) -> float:
    if math.isfinite(value):
        return value
    raise _invalid(path, f"{_special(value)} is not JSON", hint="Send None or a string instead.")


def _special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _member(path: str, key: str) -> str:
    return f"{path}.{key}" if _PLAIN_KEY.fullmatch(key) else f"{path}[{_shown(key)}]"


def _shown(value: object) -> str:
    """A short, printable form of what may be anything."""
    if isinstance(value, str):
        return ascii(value[:40]) + ("…" if len(value) > 40 else "")
    if value is None or isinstance(value, int | float):
        return f"{_printed(value)[:40]} ({type(value).__name__})"
    return f"a value of type {type(value).__name__}"


def _not_json(value: Any, path: str) -> InvalidData:
    hint = next((hint for kinds, hint in _HINTS if isinstance(value, kinds)), "")
    if not hint and dataclasses.is_dataclass(value):
        hint = "Send dataclasses.asdict(value)."
    what = f"a {type(value).__name__} is not JSON"
    return _invalid(path, what, hint=f"{hint} {_ENCODER}".strip())


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
    size = _at_least(data)
    if size is None or size <= max_bytes:
        return f"is larger than {max_bytes:,} bytes"
    return f"is at least {size:,} bytes; the limit is {max_bytes:,}"


def _at_least(data: Any, *, max_items: int = 20_000) -> int | None:
    """How many bytes the text has at least, without making it; None if counting takes too long."""
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


def clean_output(value: Any, *, max_bytes: int) -> tuple[str | None, bool]:
    """JSON text that can be stored, whatever ``value`` is, and whether it had to be changed."""
    if value is None:
        return None, False
    try:
        text = _quick(value, max_bytes, MAX_OUTPUT_DEPTH)
        if text is not None and _size(text) <= max_bytes:
            return text, False
        return _cleaned(value, max_bytes)
    except Exception:  # a job must always be able to end, whatever its handler returned
        return _dump({"truncated": True, "reason": f"unprintable {type(value).__name__}"}), True


def _cleaned(value: Any, max_bytes: int) -> tuple[str, bool]:
    cleaner = _Tolerant(max_bytes)
    text = _dump(cleaner.value(value, 0))
    size = _size(text)
    if cleaner.overflowed:
        return _truncated(text, max_bytes, max(size, _at_least(value) or 0)), True
    if size > max_bytes:
        return _truncated(text, max_bytes, size), True
    return text, cleaner.changed


def _truncated(text: str, max_bytes: int, size: int) -> str:
    # A character of text may take four bytes, or two when escaped again.
    start = text[: min(START_CHARS, max_bytes // 8)]
    return _dump({"truncated": True, "bytes": size, "start": start})


class _Tolerant:
    """Walks an output and makes JSON of it; stops adding when there is no more room."""

    def __init__(self, max_bytes: int) -> None:
        self.room = max_bytes
        self.changed = self.overflowed = False
        self.above: set[int] = set()

    def value(self, value: Any, depth: int) -> Any:
        self.take(1)
        kind = type(value)
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return self.text(value)
        if issubclass(kind, int):
            return self.number(value)
        if issubclass(kind, float):
            return value if math.isfinite(value) else self.instead(_special(value))
        if issubclass(kind, dict | list | tuple):
            return self.enclosed(value, depth + 1)
        return self.instead(_printed(value))

    def enclosed(self, value: dict[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> Any:
        if id(value) in self.above:
            return self.instead("circular reference")
        if depth > MAX_OUTPUT_DEPTH:
            self.changed = True
            return {"truncated": True, "reason": f"more than {MAX_OUTPUT_DEPTH} levels deep"}
        self.above.add(id(value))
        try:
            return self.mapping(value, depth) if isinstance(value, dict) else self.sequence(value, depth)
        finally:
            self.above.discard(id(value))

    def mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        plain = {}
        for key, item in value.items():
            if self.overflowed:
                break
            name = self.text(key) if isinstance(key, str) else self.instead(_printed(key))
            plain[name] = self.value(item, depth)
        return plain

    def sequence(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        plain = []
        for item in value:
            if self.overflowed:
                break
            plain.append(self.value(item, depth))
        return plain

    def number(self, value: int) -> Any:
        return value if _convertible(value) else self.instead(_long_int(value))

    def text(self, value: str) -> str:
        self.take(len(value))
        if self.overflowed:
            value = value[: START_CHARS * 2]
        cleaned = _storable(value)
        self.changed = self.changed or cleaned != value
        return cleaned

    def instead(self, text: str) -> str:
        self.changed = True
        return self.text(text)

    def take(self, size: int) -> None:
        self.room -= size
        self.overflowed = self.overflowed or self.room < 0


def _printed(value: object) -> str:
    """``str(value)``, or what comes nearest when that raises."""
    try:
        return str.__str__(str(value))
    except Exception:  # not our code raises here, and a text is wanted all the same
        return _represented(value)


def _represented(value: object) -> str:
    try:
        return str.__str__(repr(value))
    except Exception:  # as above
        return f"unprintable {type(value).__name__}"


def _storable(text: str) -> str:
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text) if _flaw(text) else text


def _flaw(text: str) -> str:
    """What PostgreSQL cannot store in ``text``, if anything."""
    if text.isascii() and "\0" not in text:
        return ""
    found = _UNSTORABLE.search(text)
    if found is None:
        return ""
    name = "NUL" if found.group() == "\0" else "a lone surrogate"
    return f"contains {name} ({found.group()!a}) at character {found.start()}"


def clean_text(value: object, *, max_chars: int) -> str:
    """Text that can be stored, whatever ``value`` is; a long one is cut, and says so."""
    text = _spoken(value)
    if len(text) <= max_chars:
        return _storable(text)
    note = f"… (cut: {len(text):,} characters)"
    return (_storable(text[: max(0, max_chars - len(note))]) + note)[:max_chars]


def _spoken(value: object) -> str:
    if issubclass(type(value), str):
        return str.__str__(value)
    try:
        return str.__str__(str(value))
    except Exception:  # an exception whose own message raises is still a failure to be told
        return f"unprintable {type(value).__name__}"


def check_text(value: object, *, option: str, max_length: int, required: bool = False) -> str:
    """``value`` as plain text that PostgreSQL can store; ``InvalidOption`` if it is not that.

    None is the empty text.
    """
    if value is None and not required:
        return ""
    if not isinstance(value, str) or not issubclass(type(value), str):
        raise InvalidOption(option, f"expected text, got {_shown(value)}")
    if not value and required:
        raise InvalidOption(option, "must not be empty")
    if len(value) > max_length:
        raise InvalidOption(option, f"has {len(value):,} characters; the limit is {max_length:,}")
    if flaw := _flaw(value):
        raise InvalidOption(option, flaw)
    return str.__str__(value)


def check_tags(tags: object) -> list[str]:
    """Tags in their order, each once; ``InvalidOption`` for what is not a list of short texts."""
    if tags is None or (isinstance(tags, tuple | list) and not tags):
        return []
    if isinstance(tags, str | bytes):
        raise InvalidOption("tags", "expected several texts, got one", hint=f"Write tags=[{tags[:40]!a}].")
    if not isinstance(tags, Iterable) or isinstance(tags, Mapping):
        raise InvalidOption("tags", f"expected a list of texts, got a value of type {type(tags).__name__}")
    kept: dict[str, None] = {}
    for place, tag in enumerate(tags):
        kept[check_text(tag, option=f"tags[{place}]", max_length=MAX_TAG_LENGTH, required=True)] = None
        if len(kept) > MAX_TAGS:
            raise InvalidOption("tags", f"there are more than {MAX_TAGS}")
    return list(kept)


def check_queue_name(name: object) -> str:
    """``name`` as the name of a queue; ``InvalidOption`` tells the first bad character."""
    if isinstance(name, str) and _QUEUE_NAME.fullmatch(name):
        return str.__str__(name)
    text = check_text(name, option="queue name", max_length=MAX_QUEUE_NAME, required=True)
    bad = next((character for character in text if not _NAME_CHARACTER.match(character)), "")
    problem = f"{_spelled(bad)} is not allowed" if bad else f"{text[0]!r} is not allowed at the start"
    raise InvalidOption(
        "queue name",
        problem,
        hint="Use letters, digits and _ - . / : of ASCII, starting with a letter or a digit.",
    )


def _spelled(character: str) -> str:
    if character.isascii() and character.isprintable():
        return repr(character)
    return f"{character!a} ({unicodedata.name(character, 'unnamed')})"
