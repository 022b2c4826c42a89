"""Claims inside the engine: the worker a fetch claims for, where it looks, and the claim that a verb checks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from ..claims import Claim
from ..encoding import decode
from ..exceptions import InvalidOption, JobNotFound
from ..identifiers import as_uuid
from ..models import Job
from ..states import JobState
from . import sql
from .databases import database, named
from .lanes import leaves_of

Place = tuple[int, int]  # a priority, and a position within it
Target = Job | Claim | UUID | str  # the text is that of an id or of a claim


@dataclass
class Bookmark:
    """The place of the last job that was fetched, so that the next fetch need not read the rows before it again.

    This matters only while an old transaction keeps the dead rows of finished jobs in the table. Jobs that became
    fetchable before the bookmark are found by a fetch from the beginning, once a second and whenever a batch is not
    full.
    """

    seconds: float = 1.0
    priority: int | None = None
    position: int = 0
    looked_at: float = field(default=float("-inf"), repr=False)

    def is_fresh(self) -> bool:
        return self.priority is not None and time.monotonic() - self.looked_at < self.seconds

    @property
    def place(self) -> Place:
        return self.priority or 0, self.position

    def move(self, priority: int, position: int) -> None:
        self.priority, self.position = priority, position

    def looked(self) -> None:
        self.looked_at = time.monotonic()


class Claimer(NamedTuple):
    """For which worker a fetch claims, from which queue, and which jobs it takes."""

    using: str
    queue: str
    tags: list[str]
    assignment: dict[str, Any]  # the values that a claim stores about its holder
    bookmark: Bookmark | None
    columns: tuple[str, ...] = sql.parts.CLAIMED
    policy: str = ""
    partition: bool = False
    leaf: str = ""
    skip_names: Sequence[str] = ()  # of the handlers whose jobs are not claimed

    def jobs(self, claimed: Iterable[tuple[Any, ...]]) -> list[Job]:
        return as_jobs(self.using, self.leaf, self.queue, self.policy, self.assignment["number"], self.columns, claimed)


def as_jobs(
    using: str,
    leaf: str,
    queue: str,
    policy: str,
    number: int,
    columns: tuple[str, ...],
    claimed: Iterable[tuple[Any, ...]],
) -> list[Job]:
    names = ("position", "ctid", *columns)
    known = {"queue_id": queue, "policy": policy, "state": JobState.ACTIVE.value, "leaf": leaf, "held_number": number}
    jobs = []
    for row in claimed:
        job = Job.from_row(using, names, row[1:], known)
        values = job.__dict__
        values["data"] = decode(values["data"])
        if values["carried"] is not None:
            values["carried"] = decode(values["carried"])
        jobs.append(job)
    return jobs


def id_of(job: Target) -> UUID:
    if isinstance(job, Job):
        return job.pk
    claim = claim_of(job)
    return as_uuid(job) if claim is None else claim.job_id


def claim_of_job(job: Job) -> Claim:
    """The claim of a fetched job; for a job that was only read, the claim has no number, only the attempt."""
    return job.claim or Claim(job.pk, job.attempt, None)


def claim_of(job: Target) -> Claim | None:
    """The claim that a verb checks: that of a job, or the claim that was given; none for an id."""
    if isinstance(job, Job):
        return claim_of_job(job)
    if isinstance(job, Claim):
        return job
    return Claim.parse(job) if Claim.is_text(job) else None


def database_of(job: Target, using: str | None) -> str:
    return using or (isinstance(job, Job) and job._state.db) or database(None)


def leaf_of_job(job: Job, using: str) -> str:
    return job.leaf or leaves_of(using, [job.queue_id])[job.queue_id]


@dataclass(frozen=True, slots=True)
class JobReference:
    """The one job that a verb is given, by a job, a claim, an id, or the text of a claim or an id."""

    id: UUID
    claim: Claim | None  # which the verb checks; none for an id
    queue: str | None
    using: str


def reference(job: Target, queue: str | None, using: str | None) -> JobReference:
    """What a verb is given, as a value. Raises ``JobNotFound`` for a job that is not stored."""
    using = database_of(job, using)
    if isinstance(job, Job):
        if job._state.adding:
            raise JobNotFound(job.pk)
        return JobReference(job.pk, claim_of_job(job), job.queue_id, using)
    claim = claim_of(job)
    id = as_uuid(job) if claim is None else claim.job_id
    return JobReference(id, claim, None if queue is None else named(queue), using)


def check_job(job: object) -> Job:
    if not isinstance(job, Job):
        raise InvalidOption("job", f"expected a job, got {type(job).__name__}", hint="Pass one that fetch() returned.")
    return job
