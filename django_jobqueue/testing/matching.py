"""Comparing jobs with the columns that a test expects, and describing the differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..exceptions import InvalidOption
from ..models import Job

COLUMNS = frozenset(field.attname for field in Job._meta.get_fields() if hasattr(field, "attname"))
_MOST_SHOWN = 10


def check_expected(expected: Mapping[str, Any]) -> None:
    """Raises ``InvalidOption`` for a name that is not a column of jobs."""
    for name in expected:
        if name not in COLUMNS:
            raise InvalidOption(name, "jobs have no such column")


def differences(job: Job, expected: Mapping[str, Any]) -> list[str]:
    """The differences between a job and the expected columns. A part of data and tags is enough to match."""
    found: list[str] = []
    for name, value in expected.items():
        actual = getattr(job, name)
        if name == "tags":
            missing = sorted(set(value) - set(actual))
            found += [f"tags: expected {missing}, got {actual!r}"] if missing else []
        else:
            found += _differences(name, value, actual)
    return found


def _differences(path: str, expected: Any, actual: Any) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key, value in expected.items():
            if key in actual:
                yield from _differences(f"{path}.{key}", value, actual[key])
            else:
                yield f"{path}.{key}: expected {value!r}, is missing"
    elif _is_list(expected) and _is_list(actual) and len(expected) == len(actual):
        for place, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(f"{path}[{place}]", one, other)
    elif not (_is_list(expected) and _is_list(actual)) and expected == actual:
        return
    else:
        yield f"{path}: expected {expected!r}, got {actual!r}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def described(job: Job) -> str:
    """A job in a single line."""
    key = f" key {job.singleton_key!r}" if job.singleton_key else ""
    tags = f" tags {job.tags!r}" if job.tags else ""
    return f"{job.queue_id} {job.name or '(no handler named)'}{key}{tags} {job.data!r}"


def listed(jobs: Iterable[Job], expected: Mapping[str, Any]) -> str:
    """Jobs with their differences, those with the fewest first."""
    ranked = sorted(((differences(job, expected), job) for job in jobs), key=lambda pair: (len(pair[0]), pair[1].seq))
    lines = [f"{len(ranked)} job{'' if len(ranked) == 1 else 's'} sent:" if ranked else "No job was sent at all."]
    for place, (different, job) in enumerate(ranked[:_MOST_SHOWN], 1):
        lines.append(f"  {place}. {described(job)}")
        lines += [f"       {one}" for one in different]
    if len(ranked) > _MOST_SHOWN:
        lines.append(f"  and {len(ranked) - _MOST_SHOWN} more")
    return "\n".join(lines)
