"""Hide sensitive values, such as passwords and tokens, in data, outputs and error texts that are displayed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from django.utils.crypto import salted_hmac

from .conf import valid_settings

HIDDEN = "********"

Hide = Callable[[Any], str]

_MARK = re.compile(rf"{re.escape(HIDDEN)}(?:-[0-9a-f]{{12}})?")
# The password in a URL, which may contain an @, and a token in place of a user.
_CREDENTIALS = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/@:]*:(?=\S)|(?=[^\s/@:]{16})))([^\s/\"'<>]+)(?=@)")
# password=abc, "password": "abc", and at the beginning of a line or after a colon Password: abc. Other names with a
# colon do not count, because texts such as "unexpected token: }" are common and hold no secret.
_NAME = re.compile(
    r"""\\?["'](?P<quoted>[\w .-]{1,80})\\?["']\s*[:=]\s*
        | \b(?P<bare>[\w.-]{1,80})=\s? | (?:^\s*|(?<=:\s))(?P<header>[\w-]{1,80}):\s""",
    re.MULTILINE | re.VERBOSE,
)
_VALUE = re.compile(
    r"""\\?"(?:\\.|[^"\\])*\\?" | '(?:\\.|[^'\\])*'
        | (?:Bearer|Basic|Digest)\s+[^\s,;)}\]"']+ | [^\s,;&)}\]"']+""",
    re.VERBOSE,
)
_SCHEME = re.compile(r"(\b(?:Bearer|Basic) )(?=\S*[\d=])([\w.~+/=-]{8,})")
_SOURCE_LINE = re.compile(r"^ +File \".*\", line \d+.*\n +(?! *File ).*$", re.MULTILINE)
_NAMES_OF_A_PAIR = ("name", "key", "header")


class HiddenValueMoved(ValueError):
    """Edited JSON contains asterisks that do not stand for a hidden value at this place."""


def redacted(value: Any, keys: Iterable[str] | None = None, *, arguments: Sequence[str] = ()) -> Any:
    """The same JSON without the values of sensitive keys: ``keys``, or by default those of ``JOBQUEUE["REDACT"]``.

    A key is sensitive if it contains one of these words; case and punctuation do not count. So ``api_key`` also hides
    ``X-Api-Key`` and ``apiKey``. Hiding too much is inconvenient, hiding too little leaks secrets. Pairs of a name and
    a value, such as headers, and secrets in texts and URLs are hidden too. ``arguments`` are the names of positional
    arguments, which ``django.tasks`` stores as a list.
    """
    return _Redactor(_words(keys), _asterisks).document(value, arguments)


def redacted_text(text: str, keys: Iterable[str] | None = None) -> str:
    """An error text without sensitive values. The lines of source code in a traceback are kept as they are."""
    return _Redactor(_words(keys), _asterisks).error(text)


def editable(value: Any, *, salt: str, arguments: Sequence[str] = ()) -> Any:
    """JSON for an operator to edit: each hidden value has a mark of its own, which ``restored`` replaces by the value.

    The mark depends on the value and not on its place, so it stays with its owner when an item of a list is deleted.
    """
    return _Redactor(_words(None), _Marks(salt)).document(value, arguments)


def restored(edited: Any, original: Any, *, salt: str, arguments: Sequence[str] = ()) -> Any:
    """Edited JSON with the hidden values of ``original`` in place of their marks.

    Asterisks without a mark keep the value of the same key, except inside lists. Raises ``HiddenValueMoved`` if a mark
    is not known or used twice, or if its value would be displayed at its new place.
    """
    marks = _Marks(salt)
    shown = _Redactor(_words(None), marks).document(original, arguments)
    restorer = _Restorer(marks.values, set(_strings(original)))
    result = restorer.restored(edited, shown)
    hidden = _Collected()
    _Redactor(_words(None), hidden).document(result, arguments)
    if Counter(map(_as_text, restorer.used)) - Counter(map(_as_text, hidden.values)):
        raise HiddenValueMoved(
            "A hidden value would be displayed at the place it was moved to: enter a new value there."
        )
    return result


class StoredText:
    """Hides sensitive values in the text columns of stored jobs: JSON documents, and error texts.

    ``arguments`` are the names of positional arguments, by handler. Spark sends this to executors by value, so nothing
    here may use Django.
    """

    def __init__(self, keys: Iterable[str], arguments: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        words = frozenset(map(_plain, keys)) - {""}
        self._redactor, self._arguments = _Redactor(words, _asterisks), dict(arguments)
        # Most documents hold nothing to hide, and to search them is much quicker than to parse them.
        names = [r"[\W_]*".join(word) for word in sorted(words)]
        self._hint = re.compile("|".join([*names, "://", "Bearer ", "Basic "]), re.IGNORECASE)

    def document(self, text: str | None, handler: str = "") -> str | None:
        """A JSON document. If nothing is hidden, it is the same text."""
        arguments = self._arguments.get(handler, ())
        if text is None or not self._redactor.words or not (arguments or self._hint.search(text)):
            return text
        value = json.loads(text)
        shown = self._redactor.document(value, arguments)
        return text if shown == value else json.dumps(shown, ensure_ascii=False)

    def error(self, text: str | None) -> str | None:
        """An error text, or another text for people."""
        return text if text is None or not self._hint.search(text) else self._redactor.error(text)


@dataclass(frozen=True)
class _Redactor:
    """Replaces sensitive values by what ``hide`` returns for them."""

    words: frozenset[str]
    hide: Hide

    def document(self, value: Any, arguments: Sequence[str]) -> Any:
        if arguments and isinstance(value, dict) and isinstance(value.get("args"), list):
            return {key: self._positional(item, arguments) if key == "args" else self._item(key, item)
                    for key, item in value.items()}  # fmt: skip
        return self.value(value)

    def _positional(self, values: list[Any], names: Sequence[str]) -> list[Any]:
        unnamed = [""] * (len(values) - len(names))
        return [self._item(name, value) for name, value in zip([*names, *unnamed], values, strict=False)]

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            if len(value) == 2 and isinstance(value[0], str):
                return [self.text(value[0]), self._item(*value)]
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            names = [value[name] for name in _NAMES_OF_A_PAIR if isinstance(value.get(name), str)]
            pair = any(map(self.is_sensitive, names))
            return {key: self.hide(item) if pair and key == "value" else self._item(key, item)
                    for key, item in value.items()}  # fmt: skip
        return value

    def _item(self, name: str, value: Any) -> Any:
        return self.hide(value) if self.is_sensitive(name) else self.value(value)

    def text(self, text: str) -> str:
        if not self.words:
            return text
        text = _CREDENTIALS.sub(lambda match: match[1] + self.hide(match[2]), text)
        return self._schemes("".join(self._assigned(text)))

    def _schemes(self, text: str) -> str:
        return _SCHEME.sub(lambda match: match[1] + self.hide(match[2]), text)

    def _assigned(self, text: str) -> Iterator[str]:
        """The parts of a text, with what is assigned to sensitive names hidden."""
        end = 0
        while name := _NAME.search(text, end):
            yield text[end : name.end()]
            end = name.end()
            if not self.is_sensitive(name["quoted"] or name["bare"] or name["header"]):
                continue
            value = _VALUE.match(text, end)
            if value is not None and HIDDEN not in value[0]:
                yield self._hidden(value[0])
                end = value.end()
        yield text[end:]

    def _hidden(self, value: str) -> str:
        quote = value[0] if value[0] in "\"'" else ""
        return quote + self.hide(value.strip(quote) if quote else value) + quote

    def error(self, text: str) -> str:
        """An error text; the lines of source code in a traceback are kept."""
        parts, end = [], 0
        for source in _SOURCE_LINE.finditer(text):
            parts += [self.text(text[end : source.start()]), source.group()]
            end = source.end()
        return "".join([*parts, self.text(text[end:])])

    def is_sensitive(self, key: str) -> bool:
        plain = _plain(key)
        return any(word in plain for word in self.words)


class _Marks:
    """Makes a mark for each hidden value, and knows which value it stands for."""

    def __init__(self, salt: str) -> None:
        self.salt = salt
        self.values: dict[str, Any] = {}

    def __call__(self, value: Any) -> str:
        same = 0  # how many equal values have a mark already
        while (mark := self._mark(value, same)) in self.values:
            same += 1
        self.values[mark] = value
        return mark

    def _mark(self, value: Any, same: int) -> str:
        digest = salted_hmac(f"jobqueue.redaction.{self.salt}.{same}", _as_text(value), algorithm="sha256")
        return f"{HIDDEN}-{digest.hexdigest()[:12]}"


@dataclass
class _Collected:
    """Collects the values that are hidden."""

    values: list[Any] = field(default_factory=list)

    def __call__(self, value: Any) -> str:
        self.values.append(value)
        return HIDDEN


@dataclass
class _Restorer:
    """Replaces marks by the values they stand for, each once."""

    left: dict[str, Any]
    known_texts: set[str]  # of the original, in which asterisks may be part of the data
    used: list[Any] = field(default_factory=list)

    def restored(self, edited: Any, shown: Any) -> Any:
        """``shown`` is what was displayed at the same place, or ``None`` inside a list."""
        if isinstance(edited, dict):
            there = shown if isinstance(shown, dict) else {}
            return {key: self.restored(item, there.get(key)) for key, item in edited.items()}
        if isinstance(edited, list):
            return [self.restored(item, None) for item in edited]
        if not isinstance(edited, str) or HIDDEN not in edited or edited in self.known_texts:
            return edited
        if edited == HIDDEN and isinstance(shown, str):
            edited = shown
        return self._take(edited) if edited in self.left else _MARK.sub(lambda mark: str(self._take(mark[0])), edited)

    def _take(self, mark: str) -> Any:
        if mark not in self.left:
            raise HiddenValueMoved(
                f"{mark} does not stand for a hidden value at this place. Leave hidden values as they were shown, each "
                "at most once, or enter new values."
            )
        value = self.left.pop(mark)
        self.used.append(value)
        return value


def _asterisks(value: Any) -> str:
    return HIDDEN


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _words(keys: Iterable[str] | None) -> frozenset[str]:
    return frozenset(_plain(key) for key in (valid_settings().REDACT if keys is None else keys)) - {""}


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, key)).lower()
