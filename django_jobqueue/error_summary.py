"""One line that says why an attempt failed: of the exception of a handler, or of a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from .text import printed

MAX_CHARS = 300
_MEMBERS = 3  # how many different members of an exception group are named
_LOOKED_AT = 1_000  # how many members are read; a group may have any number
_MEMBER_CHARS = 100

_HEAD = "Traceback (most recent call last):"
_GROUP_HEAD = "  + Exception Group Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?:[^\W\d]\w*\.)*(?P<name>[^\W\d]\w*)(?P<message>: .*|)")


def summary_of(error: object) -> str:
    """The class of an exception and the first line of its message, and the members of a group; of a text, its reason.

    The reason of a text is its first line or, if it is a traceback, the line that names the exception. The result has
    one line of at most 300 characters, and is empty only for an empty text.
    """
    if not isinstance(error, BaseException):
        return summary_of_text(error if isinstance(error, str) else printed(error))
    if isinstance(error, BaseExceptionGroup):
        return _cut(f"{type(error).__name__}: {_group(error)}")
    line = _exception(error)
    if line == type(error).__name__ and error.__cause__ is not None:  # no message: the cause says more
        line = f"{line}, caused by {_exception(error.__cause__)}"
    return _cut(line)


def summary_of_text(text: str) -> str:
    """The first line of a text or, if it is a traceback, the line that names the exception."""
    lines = text.splitlines()
    if _GROUP_HEAD in lines:
        lines = [_HEAD, *(line[4:] for line in lines if line.startswith("  | "))]
    if _HEAD not in lines:
        return _cut(first_line(text))
    last = len(lines) - lines[::-1].index(_HEAD)  # of chained exceptions, the last one ended the attempt
    named = next((line for line in lines[last:] if line.strip() and not line[0].isspace()), text)
    return _cut(_without_module(first_line(named)))


def first_line(text: str) -> str:
    """The first line of a text that is not empty, without control characters; a heading includes what it announces."""
    lines = (line.strip() for line in text.splitlines())
    kept = [line for line in lines if line][:2]
    if not kept:
        return ""
    first = " ".join(kept) if kept[0].endswith(":") else kept[0]
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in first)


def _exception(error: BaseException) -> str:
    name = type(error).__name__
    message = first_line(printed(error))
    return f"{name}: {message}" if message else name


def _group(error: BaseExceptionGroup[BaseException]) -> str:
    members = Counter(_cut(_exception(each), _MEMBER_CHARS) for each in _members(error))
    named = [f"{member} ({times} times)" if times > 1 else member for member, times in members.most_common(_MEMBERS)]
    if len(members) > _MEMBERS:
        named.append(f"and {len(members) - _MEMBERS} more")
    return f"{first_line(printed(error.message))} [{'; '.join(named)}]".lstrip()


def _members(error: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group and in the groups in it, at most a bounded number."""
    waiting: list[BaseException] = [error]
    for _ in range(_LOOKED_AT):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions[:_LOOKED_AT])
        else:
            yield one


def _without_module(line: str) -> str:
    """``shop.errors.CardExpired: …`` without the module of the class, as in the summary of the exception itself."""
    parts = _EXCEPTION.fullmatch(line)
    return f"{parts['name']}{parts['message']}" if parts else line


def _cut(line: str, most: int = MAX_CHARS) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
