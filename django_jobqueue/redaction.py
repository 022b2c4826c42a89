"""Hide sensitive values when the data of a job is displayed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .conf import get_settings

HIDDEN = "********"


def redacted(value: Any, keys: Iterable[str] | None = None) -> Any:
    """The same JSON without the values of sensitive keys: ``keys``, or by default those of ``JOBQUEUE["REDACT"]``.

    A key is sensitive if it contains one of these words; case and punctuation do not count. So ``api_key`` also hides
    ``X-Api-Key`` and ``apiKey``. Hiding too much is inconvenient, hiding too little leaks secrets.
    """
    words = {_plain(key) for key in (get_settings().REDACT if keys is None else keys)} - {""}
    return _redacted(value, words) if words else value


def restored(edited: Any, original: Any) -> Any:
    """Edited JSON in which values that were left hidden have their values of ``original`` again."""
    if edited == HIDDEN:
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        return {key: restored(value, original[key]) if key in original else value for key, value in edited.items()}
    if isinstance(edited, list) and isinstance(original, list):
        kept = [restored(new, old) for new, old in zip(edited, original, strict=False)]
        return kept + edited[len(original) :]
    return edited


def _redacted(value: Any, words: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_sensitive(key, words) else _redacted(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, words) for item in value]
    return value


def _is_sensitive(key: str, words: set[str]) -> bool:
    plain = _plain(key)
    return any(word in plain for word in words)


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, key)).lower()
