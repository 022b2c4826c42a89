"""Sending archived jobs again, as new jobs that name their origin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from .. import services
from ..engine.databases import database
from ..exceptions import InvalidOption, JobNotFound
from ..identifiers import as_number, as_uuid, uuid7
from ..models import Queue
from ..options import check_moment, check_state
from ..services.queues import find_queue, queue_name
from ..services.send_many import Source
from .failures import explained
from .lake import Lake, jobs_in
from .location import check_folder, lake_path
from .progress import Progress, Tell, tell_nobody, watched
from .session import given_or_started

AT_ONCE = 1_000
MOST = 100_000  # jobs of one call, because they pass through this process
_COLUMNS = (
    "id", "queue", "name", "singleton_key", "group_key", "priority", "tags", "data", "seq", "without",
    "error_summary")  # fmt: skip


@dataclass(slots=True)
class Restored:
    """The origin and id of each new job; ``refused`` origins were restored before, or the policy refused them."""

    sent: dict[UUID, UUID] = field(default_factory=dict)
    refused: list[UUID] = field(default_factory=list)
    found: int = 0
    lake: str = ""
    lake_runs: int = 0  # verified runs in the lake
    lake_jobs: int = 0  # records in all of these runs


@dataclass(frozen=True, slots=True)
class Choice:
    """Which archived jobs to restore: those that meet all conditions."""

    ids: tuple[UUID, ...] = ()
    numbers: tuple[int, ...] = ()
    queue: str | None = None
    state: tuple[str, ...] = ()
    key: str | None = None
    name: str | None = None
    finalized_after: datetime | None = None
    finalized_before: datetime | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        moments = (self.finalized_after, self.finalized_before)
        filters = (self.ids, self.numbers, self.queue, self.state, self.key, self.name, *moments)
        if all(value in (None, ()) for value in filters):
            raise InvalidOption("ids", "restore needs ids or filters")
        for moment in moments:
            if moment is not None:
                check_moment(moment, option="finalized_at")
        for state in self.state:
            check_state(state)
        if self.limit is not None and self.limit < 1:
            raise InvalidOption("limit", f"expected 1 or more, got {self.limit}")


def restore_jobs(
    *,
    ids: Iterable[UUID | str | int] = (),
    queue: str | None = None,
    state: Iterable[str] = (),
    key: str | None = None,
    name: str | None = None,
    finalized_after: datetime | None = None,
    finalized_before: datetime | None = None,
    limit: int | None = None,
    to: str | None = None,
    again: bool = False,
    dry_run: bool = False,
    lake: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    tell: Tell = tell_nobody,
    using: str | None = None,
) -> Restored:
    """Send archived jobs again, in the order in which they were sent, to their queue or to ``to``.

    ``ids`` are ids or numbers, such as ``154`` or ``"#154"``; a number that several jobs of the lake have is refused.

    Each is a new job with the options that its queue has now, and names its origin in ``source_id``, ``source_queue``
    and ``source_key``. A repeated restore does not send a job again while the first copy exists, unless ``again`` is
    true. Raises ``InvalidOption``, also if the data was left out of the lake, ``JobNotFound``, ``QueueNotFound``,
    ``SparkUnavailable``, and ``LakeProblem``, also if there is no lake.
    """
    using = database(using)
    target = None if to is None else queue_name(to)
    numbers = {id: as_number(id) for id in ids}
    choice = Choice(
        ids=tuple(as_uuid(id) for id, number in numbers.items() if number is None),
        numbers=tuple(number for number in numbers.values() if number is not None),
        queue=None if queue is None else queue_name(queue),
        state=tuple(state),
        key=key,
        name=name,
        finalized_after=finalized_after,
        finalized_before=finalized_before,
        limit=limit,
    )
    known = set(Queue.objects.using(using).values_list("name", flat=True))
    needed = target or choice.queue
    if needed is not None and needed not in known:
        find_queue(needed, using)  # raises, and names the queues that exist
    restored = Restored(lake=lake_path(lake))
    check_folder(restored.lake, holds_runs=True)
    with explained(f"the lake {restored.lake}"), given_or_started(spark, master) as session:
        rows = _collected(Lake(session, restored.lake), choice, restored, tell)
    if not rows and choice.queue is not None and choice.queue not in known:
        find_queue(choice.queue, using)  # raises, and names the queues that exist
    _check(rows, choice, target, using)
    restored.found = len(rows)
    if not dry_run:
        _send(rows, target, again, restored, tell, using)
    return restored


def chosen(jobs: DataFrame, choice: Choice) -> DataFrame:
    """The archived jobs to restore, in the order in which they were sent."""
    if choice.ids or choice.numbers:
        jobs = jobs.where(F.col("id").isin(*map(str, choice.ids)) | F.col("seq").isin(*choice.numbers))
    for column, value in (("queue", choice.queue), ("singleton_key", choice.key), ("name", choice.name)):
        if value is not None:
            jobs = jobs.where(F.col(column) == value)
    if choice.state:
        jobs = jobs.where(F.col("state").isin(*choice.state))
    if choice.finalized_after is not None:
        jobs = jobs.where(F.col("finalized_at") >= F.lit(choice.finalized_after))
    if choice.finalized_before is not None:
        jobs = jobs.where(F.col("finalized_at") < F.lit(choice.finalized_before))
    return jobs.select(*_COLUMNS).orderBy("seq").limit(choice.limit or MOST + 1)


def _collected(lake: Lake, choice: Choice, restored: Restored, tell: Tell) -> list[Row]:
    verified = lake.check().verified()
    restored.lake_runs, restored.lake_jobs = len(verified), jobs_in(verified)
    with watched(lake.spark, "reading", tell):
        return chosen(lake.read(verified), choice).collect()


def _check(rows: list[Row], choice: Choice, target: str | None, using: str) -> None:
    """Raise if these jobs cannot be sent, before the first is sent."""
    if len(rows) > MOST:
        raise InvalidOption("limit", f"more than {MOST:,} jobs match", hint="Restore them in parts: --limit, --queue.")
    missing = set(choice.ids) - {UUID(row.id) for row in rows}
    if missing and choice.limit is None:
        raise JobNotFound(sorted(missing))
    times = Counter(row.seq for row in rows if row.seq in choice.numbers)
    for number in choice.numbers:
        if not times[number] and choice.limit is None:
            raise JobNotFound(number=number)
        if times[number] > 1:
            raise InvalidOption("ids", f"{times[number]} jobs of the lake have the number {number}", hint="Give an id.")
    redacted = [row.id for row in rows if "data" in (row.without or ())]
    if redacted:
        raise InvalidOption(
            "ids",
            f"the data of {len(redacted)} of these jobs was left out of the lake, or parts of it are hidden, "
            f"for example {redacted[0]}",
            hint="Send such a job anew with its whole data.",
        )
    for queue in {row.queue for row in rows} if target is None else ():
        find_queue(queue, using)


def _send(rows: list[Row], target: str | None, again: bool, restored: Restored, tell: Tell, using: str) -> None:
    done = 0
    for queue, batch in _batches(rows, target):
        sources = [Source(UUID(row.id), row.queue, row.singleton_key, row.error_summary) for row in batch]
        items = [_item(row, again) for row in batch]
        answers = services.send_again(queue, items, sources, using=using)
        for source, new in zip(sources, answers, strict=True):
            if new is None:
                restored.refused.append(source.id)
            else:
                restored.sent[source.id] = new
        done += len(batch)
        tell(Progress("sending", done, len(rows), "jobs"))


def _batches(rows: list[Row], target: str | None) -> Iterable[tuple[str, list[Row]]]:
    queues: dict[str, list[Row]] = {}
    for row in rows:
        queues.setdefault(target or row.queue, []).append(row)
    return ((name, mine[at : at + AT_ONCE]) for name, mine in queues.items() for at in range(0, len(mine), AT_ONCE))


def _item(row: Row, again: bool) -> dict[str, Any]:
    """A job to send; its id is derived from the id of its origin, so that a killed restore can be repeated."""
    return {
        "id": uuid7() if again else uuid5(UUID(row.id), "restored"),
        "data": None if row.data is None else json.loads(row.data),
        "name": row["name"],
        "singleton_key": row.singleton_key,
        "group_key": row.group_key,
        "priority": row.priority,
        "tags": row.tags,
    }
