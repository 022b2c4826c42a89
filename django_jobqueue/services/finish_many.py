"""Finishing many jobs in few statements, and handing their lanes over: what workers call."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections

from ..claims import draw_number
from ..conf import get_settings
from ..database_errors import explain
from ..engine import announcements, sql
from ..engine.claims import as_jobs, claim_of_job, leaf_of_job
from ..engine.databases import Rows, database
from ..engine.lanes import MOST_KEYS, Lane, release, release_later
from ..engine.transactions import (
    Statement,
    at,
    at_once,
    in_transaction,
    is_strict,
    make_durable,
    none_if_locked,
    rows_of,
    text_array,
    unless_locked,
)
from ..exceptions import ClaimLost, InvalidOption, InvalidTransition, JobNotFound
from ..identifiers import as_uuid
from ..models import Job
from ..options import check_seconds
from ..outputs import clean_output
from ..policies import LANED, ORDERED
from ..states import BLOCKING, JobState, leads_to
from ..text import check_tags, check_text
from .finish import Failure, fail, stop, told

Pairs = list[tuple[Job, str | None]]  # jobs with their outputs as text
PAUSES = (0.002, 0.005)  # seconds, before a batch is tried again
NOWHERE = "(0,0)"


@dataclass(slots=True)
class Finished:
    """The result of :func:`finish_many`.

    Jobs in ``busy`` are locked by other transactions and not finished; their claims are still valid, so try them again.
    """

    completed: list[UUID] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    stopped: list[UUID] = field(default_factory=list)  # failed after their cancellation was asked for
    lost: list[UUID] = field(default_factory=list)
    busy: list[UUID] = field(default_factory=list)
    next: list[Job] = field(default_factory=list)  # claimed by hand-over
    lock_timeout: float | None = field(default=None, repr=False, compare=False)


def finish_many(
    completed: Sequence[tuple[Job, Any]] = (),
    failed: Sequence[tuple[Job, object]] = (),
    *,
    hand_over: bool = False,
    tags: Iterable[str] = (),
    worker: str = "",
    incarnation: UUID | None = None,
    lock_timeout: float | None = None,
    whole: bool = True,
    skip_names: Iterable[str] = (),
    using: str | None = None,
) -> Finished:
    """Finish many fetched jobs in few statements. Workers call this.

    The claim of each job is checked; a job whose claim is no longer valid is listed as lost, and nothing is raised for
    it. A job that failed while it was cancelling is stopped.

    With ``hand_over``, the next job of each ordered key that was finished is claimed in the same transaction, if it is
    due, carries the ``tags``, and no job of a higher priority waits in the queue. If another transaction has locked
    the row of a completed job, the call waits for a moment; for the row of a failed job it waits ``lock_timeout``
    seconds (default: ``LOCK_TIMEOUT_MS``). Jobs that are still locked then are listed as busy. ``whole`` and
    ``skip_names`` apply to the jobs that are handed over, as for :func:`fetch`.

    Raises ``InvalidOption``.
    """
    if lock_timeout is not None:
        lock_timeout = check_seconds(lock_timeout, option="lock_timeout", minimum=0.001, maximum=3600)
    _check_pairs(completed, "completed")
    _check_pairs(failed, "failed")
    finished = Finished(lock_timeout=lock_timeout)
    groups = _grouped(completed)
    using = database(using)
    try:
        own = connections[using].get_autocommit()  # else the statements become part of the caller's transaction
        if not own:
            make_durable(using)
        claimer = _Claimer(
            check_tags(tags) if tags else [],
            check_text(worker, option="worker", max_length=255),
            None if incarnation is None else as_uuid(incarnation, option="incarnation"),
            draw_number() if hand_over else 0,
            sql.parts.CLAIMED if whole else sql.parts.NEEDED,
            list(skip_names),
        )
        for (queue, policy), some in groups.items():
            if policy not in LANED:
                _complete_free(some, finished, using, own)
                continue
            for start in range(0, len(some), MOST_KEYS):
                few = some[start : start + MOST_KEYS]
                _complete_lanes(queue, policy, few, claimer if hand_over else None, finished, using, own)
        for job, error in failed:
            _alone(job, partial(_fail_or_stop, job, error, finished, using), finished, using)
    except DatabaseError as error:
        explain(error, using)
        raise
    return finished


def _fail_or_stop(job: Job, error: object, finished: Finished, using: str) -> bool:
    try:
        finished.failed.append(fail(job, error, using=using))
    except InvalidTransition:  # it is being cancelled, or has ended: then it cannot be stopped either
        stop(job, told(error), using=using)
        finished.stopped.append(job.pk)
    return True


def _check_pairs(pairs: object, option: str) -> None:
    """Check this before any row of the batch is written."""
    try:
        fine = isinstance(pairs, list | tuple) and all(isinstance(job, Job) for job, _ in pairs)
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise InvalidOption(option, "expected a list of pairs (job, value)", hint="Pass the jobs fetch() returned.")


def _grouped(completed: Sequence[tuple[Job, Any]]) -> dict[tuple[str, str], Pairs]:
    """The jobs by queue and policy, with outputs that can be stored."""
    most = get_settings().MAX_OUTPUT_BYTES
    groups: dict[tuple[str, str], Pairs] = defaultdict(list)
    for pair in completed:
        job, output = pair
        if output is not None:
            pair = job, clean_output(output, max_bytes=most)[0]
        groups[job.queue_id, job.policy].append(pair)
    return groups


@dataclass(frozen=True, slots=True)
class _Claimer:
    tags: list[str]
    worker: str
    incarnation: UUID | None
    number: int
    columns: tuple[str, ...]
    skip_names: list[str]


def _complete_free(some: Pairs, finished: Finished, using: str, own: bool) -> None:
    leaf = leaf_of_job(some[0][0], using)
    answers: Rows = []
    if own:
        here = [_WAIT_BRIEFLY, (at(leaf, sql.finish.COMPLETE_HERE), _completion_of(some, here=True))]
        results = none_if_locked(partial(at_once, using, here))
        answers = results[-1] if results else []
    if len(answers) < len(some):
        answers += at_once(using, [(at(leaf, sql.finish.COMPLETE), _completion_of(some))])[0]
    if any(job.came_by_group for job, _ in some):
        announcements.wake(using, [some[0][0].queue_id])  # the next jobs of their groups may be fetchable now
    if left := _account(some, answers, finished, using):
        _sort_out(left, finished, using)


_WAIT_BRIEFLY: Statement = (sql.session.WAIT_BRIEFLY, {})


def _complete_lanes(
    queue: str, policy: str, some: Pairs, claimer: _Claimer | None, finished: Finished, using: str, own: bool
) -> None:
    """A fetch unlocks keys after a moment; jobs whose keys are still locked then are completed without their keys."""
    if own or not is_strict(using):
        here = own
        for pause in (*PAUSES, 0):
            some = _complete_laned(queue, policy, some, claimer, finished, using, here=here)
            if not some or not own:
                break
            here = False
            time.sleep(pause)
    if some:
        some = _complete_without_keys(queue, policy, some, finished, using)
    if some:
        _sort_out(some, finished, using)


def _complete_without_keys(queue: str, policy: str, some: Pairs, finished: Finished, using: str) -> Pairs:
    """Complete jobs whose keys are locked, or in a transaction that cannot judge lanes: the lanes are released later.

    That is safe, because a fetch that looks at such a lane meanwhile finds it blocked.
    """
    statement = at(leaf_of_job(some[0][0], using), sql.finish.COMPLETE)

    def work(answers: Rows) -> Rows:
        if ended := {Lane(queue, policy, some[place - 1][0].singleton_key) for place, _ in answers}:
            release_later(using, ended)
        return answers

    answers = in_transaction(using, work, [(statement, _completion_of(some))])
    return _account(some, answers, finished, using)


def _complete_laned(
    queue: str, policy: str, some: Pairs, claimer: _Claimer | None, finished: Finished, using: str, *, here: bool
) -> Pairs:
    """Complete jobs of one queue with lanes, and release or hand over the lanes; return the jobs not completed.

    Another transaction has locked the key or the row of these, or their claim was lost.
    """
    leaf = some[0][0].leaf or leaf_of_job(some[0][0], using)
    limit = get_settings().HAND_OVER_LIMIT if claimer and policy == ORDERED else 0

    def work(*results: Rows) -> tuple[Rows, dict[str, int], Rows]:
        answers = results[-1]
        ours: dict[str, int] = {}  # keys whose lanes may be handed over, and how often that will have been
        others: set[str] = set()
        for place, state in answers:
            job = some[place - 1][0]
            if state in BLOCKING and job.handed_over < limit:
                ours[job.singleton_key] = job.handed_over + 1
            else:
                others.add(job.singleton_key)
        claimed: Rows = []
        if claimer and ours:
            claimed = _hand_over(queue, leaf, ours, claimer, using, here=here)
            place_of_key = claimer.columns.index("singleton_key") + 3
            others |= ours.keys() - {row[place_of_key] for row in claimed}
        if others:
            release(using, {Lane(queue, policy, key) for key in others}, leaves={queue: leaf})
        return answers, ours, claimed

    params = _completion_of(some, here=here)
    keys = [job.singleton_key for job, _ in some]
    params |= {"queue": queue, "keys": text_array(keys)}
    if here:
        first = [_WAIT_BRIEFLY, (at(leaf, sql.finish.COMPLETE_HERE_LANED), params)]
        done = none_if_locked(partial(in_transaction, using, work, first))
    else:
        done = in_transaction(using, work, [(at(leaf, sql.finish.COMPLETE_LANED), params)])
    if done is None:
        return some
    answers, ours, claimed = done
    if claimer and claimed:
        next_jobs = as_jobs(using, leaf, queue, policy, claimer.number, claimer.columns, claimed)
        for job in next_jobs:
            job.handed_over = ours[job.singleton_key]
        finished.next += next_jobs
    return _account(some, answers, finished, using)


def _completion_of(some: Pairs, *, here: bool = False) -> dict[str, Any]:
    """The parameters of a completion: places, claims and outputs as arrays.

    They are written here, because psycopg takes longer to write them than the server takes to read them. With ``here``,
    for the statements that look for rows only where the claims put them, there are no attempts.
    """
    places = ",".join([f'"{job.ctid}"' for job, _ in some])
    ids = ",".join([job.id.hex for job, _ in some])
    held = [job.held_number for job, _ in some]
    texts = {number: str(number or "NULL") for number in set(held)}  # most share the number of one fetch
    numbers = ",".join([texts[number] for number in held])
    outputs = [output for _, output in some]
    params: dict[str, Any] = {
        "tids": f"{{{places}}}",
        "ids": f"{{{ids}}}",
        "numbers": f"{{{numbers}}}",
        "outputs": outputs if any(outputs) else [],
    }
    if not here:
        params["attempts"] = f"{{{','.join([str(job.attempt) for job, _ in some])}}}"
    return params


def _hand_over(queue: str, leaf: str, keys: Iterable[str], claimer: _Claimer, using: str, *, here: bool) -> Rows:
    """Claim the next job of each of these lanes, where it may run: this transaction has ended the job before it."""
    params = {"queue": queue, "keys": text_array(sorted(keys)), "tags": claimer.tags, "worker": claimer.worker,
              "incarnation": claimer.incarnation, "number": claimer.number, "lease": None,
              "skip_names": text_array(claimer.skip_names)}  # fmt: skip
    statement = sql.finish.HAND_OVER_HERE if here else sql.finish.HAND_OVER
    return rows_of(using, at(leaf, statement, claimer.columns), params, by_name=True)


def _account(some: Pairs, answers: Rows, finished: Finished, using: str) -> Pairs:
    """Note the jobs that the statement finished, by their places in the batch; return the others."""
    done = {place for place, _ in answers}
    announcements.ended(using, (job.id for place, (job, _) in enumerate(some, 1) if place in done))
    if len(done) == len(some):
        finished.completed += [job.id for job, _ in some]
        return []
    finished.completed += [job.id for place, (job, _) in enumerate(some, 1) if place in done]
    return [pair for place, pair in enumerate(some, 1) if place not in done]


def _sort_out(some: Pairs, finished: Finished, using: str) -> None:
    """Sort jobs that could not be completed: another transaction has locked the row, or the claim was lost."""
    jobs = Job.objects.using(using).in_queue(some[0][0].queue_id).filter(pk__in=[job.pk for job, _ in some])
    claims = jobs.in_state(*leads_to(JobState.COMPLETED)).values_list("pk", "attempt", "claim_number")
    current = {id: (attempt, number) for id, attempt, number in claims}
    for job, _ in some:
        if job.pk in current and claim_of_job(job).fits(*current[job.pk]):
            finished.busy.append(job.pk)
            job.ctid = NOWHERE  # so that the next try does not wait for it
        else:
            finished.lost.append(job.pk)


def _alone(job: Job, work: Callable[[], bool], finished: Finished, using: str) -> None:
    """Fail one job of a batch; note it as lost, or as busy if its row stays locked."""
    try:
        result = unless_locked(using, work, finished.lock_timeout)
    except (ClaimLost, JobNotFound, InvalidTransition):
        finished.lost.append(job.pk)
        return
    if result is None:
        finished.busy.append(job.pk)
