"""A selection of jobs: the filters of an operator as a value, stored with the operation that acts on the jobs.

The admin and the command line create it, and ``JobQuerySet.selected()`` applies it. It is stored as JSON in
``Operation.selection``, so that any process can continue the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from .exceptions import InvalidOption
from .identifiers import as_uuid
from .options import check_int, check_moment, check_seconds, check_state
from .states import JobState
from .text import check_tags, check_text

T = TypeVar("T")

MOST_CHARS = 10_000
LARGEST_SEQ = 2**63 - 1
LARGEST_NUMBER = 1e9


@dataclass(frozen=True, slots=True)
class Range(Generic[T]):
    """From ``low`` to ``high``, both included; ``None`` means no bound."""

    low: T | None = None
    high: T | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs that an operator selected: by ``ids``, or by filters, which a job must satisfy all.

    Without any field it selects all jobs. Raises ``InvalidOption`` for a value that is not valid, and for ``ids``
    together with a filter.
    """

    ids: tuple[UUID, ...] | None = None
    queue: str | None = None
    states: tuple[JobState, ...] | None = None
    key: str | None = None
    key_prefix: str | None = None
    tags: tuple[str, ...] | None = None  # jobs that carry all of them
    handler: str | None = None
    worker: str | None = None  # the worker that a job was last assigned to
    fingerprint: str | None = None
    source_queue: str | None = None  # the queue that a dead letter or a restored job comes from
    search: str | None = None  # an id, or the beginning of an id or of a key
    operation: UUID | None = None  # the jobs that this operation changed
    blocks_key: bool | None = None  # only jobs that failed for good and hold the key of an ordered queue
    created_at: Range[datetime] | None = None
    started_at: Range[datetime] | None = None
    finalized_at: Range[datetime] | None = None
    attempt: Range[float] | None = None
    duration: Range[float] | None = None  # of the latest attempt, in seconds
    # What the operator was shown: jobs sent after the number ``after_seq`` up to ``until_seq``, as they
    # were in the snapshot of the database that ``current_snapshot()`` returned.
    after_seq: int | None = None
    until_seq: int | None = None
    snapshot: str | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else check(name, value))
        if self.ids is not None and (others := sorted(self._given() - _WITH_IDS)):
            raise InvalidOption("ids", f"cannot be given together with {others[0]}")

    def _given(self) -> set[str]:
        return {field.name for field in fields(self) if getattr(self, field.name) is not None}

    @property
    def is_named(self) -> bool:
        """Whether the jobs are named by their ids."""
        return self.ids is not None

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, as JSON types."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self) if field.name in self._given()}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """The selection that :meth:`to_json` wrote. Raises ``InvalidOption`` for an unknown field or a bad value."""
        if not isinstance(document, Mapping):
            raise InvalidOption("selection", f"expected an object, got a value of type {type(document).__name__}")
        if unknown := [name for name in document if name not in _CHECKS]:
            raise InvalidOption("selection", f"unknown field {str(unknown[0])[:40]!a}", hint=_guess(unknown[0]))
        return cls(**document)


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(each) for each in value]
        case Range():
            bounds = {"from": value.low, "to": value.high}
            return {name: _plain(bound) for name, bound in bounds.items() if bound is not None}
        case datetime():
            return value.isoformat()
        case UUID() | JobState():
            return str(value)
        case _:
            return value


def _guess(name: object) -> str:
    close = get_close_matches(name, _CHECKS, n=1) if isinstance(name, str) else []
    return f"Did you mean {close[0]!r}?" if close else ""


# --------------------------------------------------------------------------------------------- checks of the fields


def _text(name: str, value: object) -> str:
    return check_text(value, option=name, max_length=MOST_CHARS)


def _snapshot(name: str, value: object) -> str:
    return check_text(value, option=name, max_length=200_000)


def _id(name: str, value: object) -> UUID:
    return as_uuid(value, option=name)


def _several(name: str, value: object) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidOption(name, f"expected a list, got a value of type {type(value).__name__}")
    return list(value)


def _ids(name: str, value: object) -> tuple[UUID, ...]:
    return tuple(dict.fromkeys(as_uuid(id, option=name) for id in _several(name, value)))


def _states(name: str, value: object) -> tuple[JobState, ...]:
    return tuple(sorted({check_state(state) for state in _several(name, value)}))


def _tags(name: str, value: object) -> tuple[str, ...]:
    return tuple(check_tags(_several(name, value)))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(name, f"expected true or false, got a value of type {type(value).__name__}")
    return value


def _seq(name: str, value: object) -> int:
    return check_int(value, option=name, minimum=0, maximum=LARGEST_SEQ)


def _range_of(check: Callable[[str, object], T]) -> Callable[[str, object], Range[T]]:
    def checked(name: str, value: object) -> Range[T]:
        if isinstance(value, Range):
            bounds = {"from": value.low, "to": value.high}
        elif isinstance(value, Mapping) and value.keys() <= {"from", "to"}:
            bounds = dict(value)
        else:
            raise InvalidOption(name, 'expected an object with "from", "to" or both')
        low, high = (None if bounds.get(end) is None else check(name, bounds[end]) for end in ("from", "to"))
        return Range(low, high)

    return checked


def _moment(name: str, value: object) -> datetime:
    if not isinstance(value, str):
        return check_moment(value, option=name)
    try:
        return check_moment(datetime.fromisoformat(value), option=name)
    except ValueError as error:
        raise InvalidOption(name, f"expected a time in ISO 8601, got {value[:40]!a}") from error


def _number(name: str, value: object) -> float:
    return check_seconds(value, option=name, minimum=0, maximum=LARGEST_NUMBER)


_CHECKS: Mapping[str, Callable[[str, object], Any]] = MappingProxyType(
    {
        "ids": _ids,
        "queue": _text,
        "states": _states,
        "key": _text,
        "key_prefix": _text,
        "tags": _tags,
        "handler": _text,
        "worker": _text,
        "fingerprint": _text,
        "source_queue": _text,
        "search": _text,
        "operation": _id,
        "blocks_key": _flag,
        "created_at": _range_of(_moment),
        "started_at": _range_of(_moment),
        "finalized_at": _range_of(_moment),
        "attempt": _range_of(_number),
        "duration": _range_of(_number),
        "after_seq": _seq,
        "until_seq": _seq,
        "snapshot": _snapshot,
    }
)
_WITH_IDS = frozenset({"ids", "snapshot"})
