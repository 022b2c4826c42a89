"""Text for the database: names, keys and tags from callers are checked, messages from handlers are cleaned.

All checks run before any SQL, because an error of an INSERT would abort the caller's transaction.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

from .exceptions import InvalidOption

MAX_TAGS, MAX_TAG_LENGTH = 50, 100
MAX_QUEUE_NAME = 100
HISTORY_CHARS = 4_000  # of the error of an earlier attempt
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NAME_CHARACTER = re.compile(r"[A-Za-z0-9_./:-]")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:-]{0,99}")


def check_text(value: object, *, option: str, max_length: int, required: bool = False) -> str:
    """``value`` as a plain string that PostgreSQL can store; ``InvalidOption`` if it is none.

    ``None`` counts as the empty string.
    """
    if value is None and not required:
        return ""
    if not isinstance(value, str) or not issubclass(type(value), str):
        raise InvalidOption(option, f"expected a string, got {shown(value)}")
    if not value and required:
        raise InvalidOption(option, "must not be empty")
    if len(value) > max_length:
        raise InvalidOption(option, f"has {len(value):,} characters; the limit is {max_length:,}")
    if flaw := flaw_of(value):
        raise InvalidOption(option, flaw)
    return str.__str__(value)


def check_tags(tags: object) -> list[str]:
    """Tags in their order, each once; ``InvalidOption`` if they are not a list of short strings."""
    if tags is None or (isinstance(tags, tuple | list) and not tags):
        return []
    if isinstance(tags, str | bytes):
        raise InvalidOption("tags", "expected a list of strings, got one string", hint=f"Write tags=[{tags[:40]!a}].")
    if not isinstance(tags, Iterable) or isinstance(tags, Mapping):
        raise InvalidOption("tags", f"expected a list of strings, got a value of type {type(tags).__name__}")
    kept: dict[str, None] = {}
    for place, tag in enumerate(tags):
        kept[check_text(tag, option=f"tags[{place}]", max_length=MAX_TAG_LENGTH, required=True)] = None
        if len(kept) > MAX_TAGS:
            raise InvalidOption("tags", f"expected at most {MAX_TAGS} tags")
    return list(kept)


def check_queue_name(name: object) -> str:
    """``name`` as the name of a queue; ``InvalidOption`` names the first character that is not allowed."""
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


def clean_text(value: object, *, max_chars: int) -> str:
    """Any value as text that can be stored; a long text is cut, see :func:`shortened`."""
    return storable(shortened(_as_text(value), max_chars))


def shortened(text: str, max_chars: int) -> str:
    """A long text without its middle, where a note says how much was left out: both ends of a traceback matter."""
    if len(text) <= max_chars:
        return text
    note = "\n… ({:,} characters left out) …\n" if "\n" in text else " … ({:,} characters left out) … "
    kept = max_chars - len(note.format(len(text)))
    if kept <= 0:
        return text[:max_chars]
    return f"{text[: kept // 2]}{note.format(len(text) - kept)}{text[kept // 2 - kept :]}"


def _as_text(value: object) -> str:
    if issubclass(type(value), str):
        return str.__str__(value)
    try:
        return str.__str__(str(value))
    except Exception:  # str() of an exception may raise, and the failure must be stored all the same
        return f"unprintable {type(value).__name__}"


def storable(text: str) -> str:
    """``text`` without what PostgreSQL cannot store."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text) if flaw_of(text) else text


def flaw_of(text: str) -> str:
    """What PostgreSQL cannot store in ``text``; empty if it can store all of it."""
    if text.isascii() and "\0" not in text:
        return ""
    match = _UNSTORABLE.search(text)
    if match is None:
        return ""
    name = "NUL" if match.group() == "\0" else "a lone surrogate"
    return f"contains {name} ({match.group()!a}) at character {match.start()}"


def shown(value: object) -> str:
    """A short, printable form of any value."""
    if isinstance(value, str):
        return ascii(value[:40]) + ("…" if len(value) > 40 else "")
    if value is None or isinstance(value, int | float):
        return f"{printed(value)[:40]} ({type(value).__name__})"
    return f"a value of type {type(value).__name__}"


def printed(value: object) -> str:
    """``str(value)``; if that raises, ``repr(value)``; if that raises too, the name of its type."""
    try:
        return str.__str__(str(value))
    except Exception:  # the value's own code may raise anything
        return _represented(value)


def _represented(value: object) -> str:
    try:
        return str.__str__(repr(value))
    except Exception:  # as above
        return f"unprintable {type(value).__name__}"
