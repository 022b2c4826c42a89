"""Outputs of handlers for the database: they are cleaned and never refused, because a job must be able to end."""

from __future__ import annotations

import math
from typing import Any

from .encoding import dump, is_convertible, least_size, long_int_text, quick_dump, size_of, special_float_text
from .text import printed, storable

MAX_OUTPUT_DEPTH = 100
START_CHARS = 1_000  # how much of an output that is too large is kept


def clean_output(value: Any, *, max_bytes: int) -> tuple[str | None, bool]:
    """Any value as JSON text that can be stored, and whether it had to be changed."""
    if value is None:
        return None, False
    try:
        text = quick_dump(value, max_bytes, MAX_OUTPUT_DEPTH)
        if text is not None and size_of(text) <= max_bytes:
            return text, False
        return _cleaned(value, max_bytes)
    except Exception:  # whatever the handler returned, its job must be able to end
        return dump({"truncated": True, "reason": f"unprintable {type(value).__name__}"}), True


def _cleaned(value: Any, max_bytes: int) -> tuple[str, bool]:
    cleaner = _Tolerant(max_bytes)
    text = dump(cleaner.value(value, 0))
    size = size_of(text)
    if cleaner.overflowed:
        return _truncated(text, max_bytes, max(size, least_size(value) or 0)), True
    if size > max_bytes:
        return _truncated(text, max_bytes, size), True
    return text, cleaner.changed


def _truncated(text: str, max_bytes: int, size: int) -> str:
    # A character of text takes up to four bytes, or two if it is escaped again.
    start = text[: min(START_CHARS, max_bytes // 8)]
    return dump({"truncated": True, "bytes": size, "start": start})


class _Tolerant:
    """Walks an output and converts it to JSON types; stops when the output is too large."""

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
            return value if math.isfinite(value) else self.instead(special_float_text(value))
        if issubclass(kind, dict | list | tuple):
            return self.enclosed(value, depth + 1)
        return self.instead(printed(value))

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
            name = self.text(key) if isinstance(key, str) else self.instead(printed(key))
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
        return value if is_convertible(value) else self.instead(long_int_text(value))

    def text(self, value: str) -> str:
        self.take(len(value))
        if self.overflowed:
            value = value[: START_CHARS * 2]
        cleaned = storable(value)
        self.changed = self.changed or cleaned != value
        return cleaned

    def instead(self, text: str) -> str:
        self.changed = True
        return self.text(text)

    def take(self, size: int) -> None:
        self.room -= size
        self.overflowed = self.overflowed or self.room < 0
