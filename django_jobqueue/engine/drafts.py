"""Drafts of jobs, checked before any SQL, so that bad data never breaks a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ..conf import get_encoder, get_settings
from ..encoding import encode
from ..exceptions import InvalidData, InvalidOption, JobQueueError
from ..identifiers import as_uuid, uuid7
from ..options import LARGEST, YEAR, check_int, check_moment, check_seconds, clean_job_options
from ..text import check_tags, check_text

_PLAIN = frozenset(
    {"data", "name", "id", "singleton_key", "group_key", "priority", "delay", "start_after", "tags",
     "throttle_seconds"}
)  # fmt: skip


# Shared by all jobs without tags or options: a list and a dict for each of many jobs would make the garbage collector
# run through all objects, which takes as long as the checks.
_NO_TAGS: list[str] = []
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True)
class Checked:
    """One job as it will be stored: checked before any SQL, so that bad data never breaks a transaction."""

    id: UUID
    given_id: bool
    data: str | None
    plain_data: Any
    tags: list[str]
    options: Mapping[str, Any]
    name: str = ""
    singleton_key: str = ""
    group_key: str = ""
    priority: int = 0
    delay: float | None = None
    start_after: datetime | None = None
    throttle_seconds: int | None = None
    carried: str | None = None
    # The id, the queue and the key of the job that it is made from, and why that job failed.
    source: tuple[UUID, str, str, str | None] | None = None


def check_values(
    data: Any,
    name: str | None,
    id: UUID | str | None,
    singleton_key: str | None,
    group_key: str | None,
    priority: int,
    delay: float | timedelta | None,
    start_after: datetime | None,
    tags: Iterable[str],
    throttle_seconds: int | None,
    options: Mapping[str, Any],
) -> Checked:
    settings = get_settings()
    text = (
        None
        if data is None
        else encode(data, max_bytes=settings.MAX_DATA_BYTES, max_depth=settings.MAX_DEPTH, encoder=get_encoder())
    )
    job = Checked(
        uuid7() if id is None else as_uuid(id), id is not None, text, data, tags=_NO_TAGS, options=_NO_OPTIONS
    )
    if name is not None:
        job.name = check_text(name, option="name", max_length=255)
    if singleton_key is not None:
        job.singleton_key = check_text(singleton_key, option="singleton_key", max_length=255)
    if group_key is not None:
        job.group_key = check_text(group_key, option="group_key", max_length=255)
    if tags:
        job.tags = check_tags(tags)
    if type(priority) is not int or priority:
        job.priority = check_int(priority, option="priority", minimum=-LARGEST, maximum=LARGEST)
    if delay is not None or start_after is not None:
        job.delay, job.start_after = _when(delay, start_after)
    if throttle_seconds is not None:
        job.throttle_seconds = check_int(throttle_seconds, option="throttle_seconds", minimum=1, maximum=LARGEST)
    if options:
        job.options = clean_job_options(options)
    return job


def check_items(items: Iterable[Mapping[str, Any]]) -> list[Checked]:
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise InvalidOption("items", f"expected a list of dicts, got {type(items).__name__}")
    jobs: list[Checked] = []
    problems: list[str] = []
    first: JobQueueError | None = None
    for place, item in enumerate(items):
        try:
            jobs.append(_check_item(item))
        except (InvalidOption, InvalidData) as error:
            first = first or error
            problems.append(f"items[{place}]: {error.message}")
    if first is not None:
        raise _all_problems(first, problems)
    return jobs


def _check_item(item: Mapping[str, Any]) -> Checked:
    if not isinstance(item, Mapping):
        raise InvalidOption("item", f"expected a dict, got {type(item).__name__}")
    get = item.get
    options = _NO_OPTIONS if item.keys() <= _PLAIN else {name: item[name] for name in item if name not in _PLAIN}
    return check_values(
        get("data"),
        get("name"),
        get("id"),
        get("singleton_key"),
        get("group_key"),
        get("priority", 0),
        get("delay"),
        get("start_after"),
        get("tags") or (),
        get("throttle_seconds"),
        options,
    )


def _all_problems(first: JobQueueError, problems: list[str]) -> JobQueueError:
    shown = "; ".join(problem.rstrip(".") for problem in problems[:20])
    more = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
    if isinstance(first, InvalidData):
        return InvalidData("items", f"{len(problems)} of them cannot be sent: {shown}{more}", hint=first.hint)
    return InvalidOption("items", f"{len(problems)} of them cannot be sent: {shown}{more}", hint=first.hint)


def _when(delay: object, start_after: object) -> tuple[float | None, datetime | None]:
    if delay is not None and start_after is not None:
        raise InvalidOption("delay", "cannot be given together with start_after")
    if start_after is not None:
        return None, check_moment(start_after)
    return check_seconds(delay, option="delay", minimum=0, maximum=100 * YEAR) or None, None
