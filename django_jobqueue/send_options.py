"""The options of sends as types, so that type checkers find misspelled ones; their names are known at run time too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypedDict
from uuid import UUID

Seconds = int | timedelta
Key = str | Callable[..., str | None] | None
Sure = Literal["return"]  # on_duplicate with which a send always returns a job
Refusing = Literal["ignore"] | None  # on_duplicate with which a send may return None
OnDuplicate = Sure | Refusing


class JobOptions(TypedDict, total=False):
    """The options of a job that its queue has too."""

    retry_limit: int | None
    retry_delay: Seconds
    retry_backoff: bool
    retry_delay_max: Seconds | None
    expire_in_seconds: Seconds
    heartbeat_seconds: Seconds | None
    retention_seconds: Seconds
    delete_after_seconds: Seconds
    delete_failed_after_seconds: Seconds


class _Sent(JobOptions, total=False):
    priority: int
    delay: float | timedelta | None
    start_after: datetime | None
    tags: Iterable[str]


class PlainOptions(_Sent, total=False):
    """The options of ``@job`` with which the policy of a standard or ordered queue refuses no job."""

    group_key: Key


class KeyedOptions(PlainOptions, total=False):
    """All options of ``@job`` for its sends, except ``on_duplicate``."""

    singleton_key: Key
    throttle_seconds: int | None


class PlainSendOptions(PlainOptions, total=False):
    """The options of ``using()`` with which the policy of a standard or ordered queue refuses no job."""

    queue: str
    name: str | None
    id: UUID | str | None
    using: str | None


class KeyedSendOptions(KeyedOptions, PlainSendOptions, total=False):
    """All options of ``using()``, except ``on_duplicate``."""


class _Stored(_Sent, total=False):
    name: str | None
    id: UUID | str | None
    singleton_key: str | None
    group_key: str | None
    throttle_seconds: int | None


class SendOptions(_Stored, total=False):
    """The options of ``services.send``, except ``on_duplicate``."""

    using: str | None


class Item(_Stored, total=False):
    """One job of ``send_many``: its data, and options of ``send``."""

    data: Any


# The options with which the policy of any queue may refuse a job.
REFUSABLE = frozenset({"singleton_key", "throttle_seconds"})
OF_DECORATOR: tuple[str, ...] = (*sorted(KeyedOptions.__optional_keys__), "on_duplicate")
OF_SENDS: tuple[str, ...] = (*sorted(KeyedSendOptions.__optional_keys__), "on_duplicate")
NOT_OF_ITEMS = frozenset({"queue", "using", "on_duplicate"})  # arguments of send_many() itself
_OF_SENDS = frozenset(OF_SENDS)
_OF_DECORATOR = frozenset(OF_DECORATOR)


def unknown_of_sends(options: Mapping[str, object]) -> str | None:
    """The first option that sends do not have."""
    return None if options.keys() <= _OF_SENDS else next(name for name in options if name not in _OF_SENDS)


def unknown_of_decorator(options: Mapping[str, object]) -> str | None:
    """The first option that ``@job`` does not have."""
    return next((name for name in options if name not in _OF_DECORATOR), None)


def closest(name: str, known: Iterable[str] = OF_SENDS) -> str:
    """Which option was probably meant, or the list of all."""
    known = list(known)
    close = get_close_matches(name[:100].lower(), known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"The options are {', '.join(known)}."
