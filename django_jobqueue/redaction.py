"""Values that are not shown to everybody who may look at a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .conf import get_settings

HIDDEN = "********"


def redacted(value: Any, keys: Iterable[str] | None = None) -> Any:
    """The same JSON without the values of sensitive keys: those of ``JOBQUEUE["REDACT"]``, unless ``keys`` are given.

    A key is sensitive if it contains one of these words, whatever the case and the punctuation: ``api_key`` also hides
    ``X-Api-Key`` and ``apiKey``. Hiding too much is a nuisance, hiding too little a leak.
    """
    words = {_plain(key) for key in (get_settings().REDACT if keys is None else keys)} - {""}
    return _redacted(value, words) if words else value


def restored(edited: Any, original: Any) -> Any:
    """What somebody edited who saw ``original`` redacted: values left hidden are the original's again."""
    if edited == HIDDEN:
        return original
    if isinstance(edited, dict) and isinstance(original, dict):
        return {key: restored(value, original[key]) if key in original else value for key, value in edited.items()}
    if isinstance(edited, list) and isinstance(original, list):
        kept = [restored(one, other) for one, other in zip(edited, original, strict=False)]
        return kept + edited[len(original) :]
    return edited


def _redacted(value: Any, words: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_sensitive(key, words) else _redacted(one, words) for key, one in value.items()}
    if isinstance(value, list):
        return [_redacted(one, words) for one in value]
    return value


def _is_sensitive(key: str, words: set[str]) -> bool:
    plain = _plain(key)
    return any(word in plain for word in words)


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, key)).lower()
