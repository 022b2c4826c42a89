"""The errors of django_jobqueue, each with its facts, a stable code and a hint what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar
from uuid import UUID


class JobQueueError(Exception):
    """The base of every error that django_jobqueue raises on purpose."""

    code: ClassVar[str] = "error"
    hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = message
        self.hint = hint or self.hint
        super().__init__(f"{message} {self.hint}".strip())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes, because the constructors of subclasses take facts and not the message."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[JobQueueError], args: tuple[Any, ...], facts: dict[str, Any]) -> JobQueueError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(facts)
    return error


class QueueNotFound(JobQueueError):
    """A queue of that name does not exist."""

    code = "queue_not_found"

    def __init__(self, name: str, known: Iterable[str] = (), *, is_declared: bool = False) -> None:
        self.name = name
        close = get_close_matches(name, list(known), n=1) if len(name) <= 200 and not is_declared else []
        guess = f" Did you mean {close[0]!r}?" if close else ""
        shown = name if len(name) <= 100 else f"{name[:100]}…"
        super().__init__(
            f"There is no queue named {shown!r}.{guess}",
            hint="It is declared in JOBQUEUE['QUEUES'], but was not created yet: run manage.py migrate."
            if is_declared
            else "Declare it in JOBQUEUE['QUEUES'] and migrate, or call create_queue().",
        )


class JobNotFound(JobQueueError):
    """No job has that id or number."""

    code = "job_not_found"
    hint = "It may have been deleted, its transaction may have been rolled back, or it is in another queue or database."

    def __init__(self, job_ids: UUID | Sequence[UUID] = (), *, number: int | None = None) -> None:
        self.job_ids = [job_ids] if isinstance(job_ids, UUID) else list(job_ids)
        self.number = number
        if number is not None:
            super().__init__(f"No job has the number {number}.")
            return
        shown = ", ".join(str(job_id) for job_id in self.job_ids[:10])
        more = f" and {len(self.job_ids) - 10} more" if len(self.job_ids) > 10 else ""
        super().__init__(f"There is no job {shown}{more}.")


class ScheduleNotFound(JobQueueError):
    """A schedule of that name does not exist."""

    code = "schedule_not_found"

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        close = get_close_matches(name, list(known), n=1) if len(name) <= 200 else []
        guess = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(
            f"There is no schedule named {name[:100]!r}.{guess}",
            hint="Declare it in JOBQUEUE['SCHEDULES'] and migrate, or call create_schedule().",
        )


class DuplicateJob(JobQueueError):
    """A job with that id exists already, or the queue's policy allows no other job with that key."""

    code = "duplicate_job"
    hint = "Pass on_duplicate='return' to get the existing job, or 'ignore' to send nothing."

    def __init__(self, queue: str, items: Sequence[str]) -> None:
        self.queue, self.items = queue, list(items)
        super().__init__(f"Nothing was sent to {queue!r}: {'; '.join(self.items)}.")


class InvalidTransition(JobQueueError):
    """A verb was called on a job whose state does not allow it."""

    code = "invalid_transition"

    def __init__(self, *, job_id: UUID, state: str, wanted: str, allowed: Iterable[str] = ()) -> None:
        self.job_id, self.state, self.wanted = job_id, state, wanted
        self.allowed = sorted(allowed)
        super().__init__(
            f"Job {job_id} is {state} and cannot become {wanted}.",
            hint=f"That is possible only while it is {' or '.join(self.allowed)}." if self.allowed else "",
        )


class KeyRequired(JobQueueError):
    """A job for an ordered queue was sent without a singleton key."""

    code = "key_required"

    def __init__(self, queue: str, places: Sequence[int] = ()) -> None:
        self.queue, self.places = queue, list(places)
        where = f" (items {', '.join(map(str, self.places[:20]))})" if self.places else ""
        super().__init__(
            f"FIFO queues require a singleton_key; {queue!r} is a FIFO queue{where}.",
            hint="Pass singleton_key=…: jobs of one key run one after another.",
        )


class NotOrdered(JobQueueError):
    """Only ordered queues have blocked keys."""

    code = "not_ordered"

    def __init__(self, queue: str, policy: str) -> None:
        self.queue, self.policy = queue, policy
        super().__init__(
            f"Queue {queue!r} has the policy {policy!r}.",
            hint="Blocked keys exist only on queues with the policy 'key_strict_fifo'.",
        )


class ImmutableOption(JobQueueError):
    """The policy and the partition of an existing queue cannot be changed."""

    code = "immutable_option"

    def __init__(self, queue: str, option: str, old: Any, new: Any) -> None:
        self.queue, self.option, self.old, self.new = queue, option, old, new
        super().__init__(
            f"Queue {queue!r} has {option}={old!r}, which cannot be changed to {new!r}.",
            hint="Create a queue with another name and move the senders to it.",
        )


class InvalidOption(JobQueueError):
    """An argument has an invalid value."""

    code = "invalid_option"

    def __init__(self, option: str, problem: str, *, hint: str = "") -> None:
        self.option, self.problem = option, problem
        super().__init__(f"{option}: {problem}.", hint=hint)


class InvalidData(JobQueueError):
    """The data of a job cannot be stored as JSON."""

    code = "invalid_data"

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}.", hint=hint)


class ClaimLost(JobQueueError):
    """A worker tried to finish a job it no longer holds."""

    code = "claim_lost"
    hint = "The outcome was not stored; the worker that holds the job now will finish it."

    def __init__(self, *, job_id: UUID, attempt: int, now: int | None = None) -> None:
        self.job_id, self.attempt, self.now = job_id, attempt, now
        holder = f" Its current attempt is {now}." if now not in (None, attempt) else ""
        claim = f"this claim of attempt {attempt}" if now == attempt else f"attempt {attempt}"
        super().__init__(f"Job {job_id} is no longer held by {claim}.{holder}")


class JobFailed(JobQueueError):
    """A job whose result was waited for failed for good or expired."""

    code = "job_failed"
    hint = "The attribute error holds the whole text; an operator can retry the job."

    def __init__(self, *, job_id: UUID, state: str, error: str, summary: str) -> None:
        self.job_id, self.state, self.error = job_id, state, error
        how = "failed for good" if state == "failed" else state
        super().__init__(f"Job {job_id} {how}: {summary.rstrip('.') or 'it has no error text'}.")


class JobCancelled(JobQueueError):
    """A job whose result was waited for was cancelled, stopped or skipped, so it has no result."""

    code = "job_cancelled"
    hint = "Send another job if you need a result."

    def __init__(self, *, job_id: UUID, state: str, note: str = "") -> None:
        self.job_id, self.state, self.note = job_id, state, note
        why = f", {note.strip()[:500].rstrip('.')}" if note.strip() else ""
        super().__init__(f"Job {job_id} has no result, because it was {state.replace('_', ' ')}{why}.")


class WaitTimeout(JobQueueError, TimeoutError):
    """A job did not end within the time that a caller was ready to wait."""

    code = "wait_timeout"
    hint = "The job goes on. Wait longer, or check that a worker serves its queue: manage.py jobs why ID says more."

    def __init__(self, *, job_id: UUID, seconds: float) -> None:
        self.job_id, self.seconds = job_id, seconds
        super().__init__(f"Job {job_id} did not end within {seconds:g} seconds.")


class CannotWait(JobQueueError):
    """Waiting for a result inside this transaction would never end, or the result would not be seen."""

    code = "cannot_wait"
    hint = "Wait after the transaction is committed. In tests, run the job first, for example with jobqueue.drain()."

    def __init__(self, *, job_id: UUID, problem: str) -> None:
        self.job_id, self.problem = job_id, problem
        super().__init__(f"Job {job_id} cannot be waited for: {problem}.")


class UnsafeIsolation(JobQueueError):
    """fetch() was called inside a transaction that is stricter than READ COMMITTED."""

    code = "unsafe_isolation"

    def __init__(self, level: str) -> None:
        self.level = level
        super().__init__(
            f"fetch() was called inside a transaction with isolation level {level.upper()}.",
            hint="Call it outside atomic(), or in a READ COMMITTED transaction.",
        )


class StreamClosed(JobQueueError):
    """The stream has ended."""

    code = "stream_closed"

    def __init__(self, worker: str) -> None:
        self.worker = worker
        super().__init__(f"The stream of {worker!r} was closed.", hint="Open another with stream().")


class SparkUnavailable(JobQueueError):
    """PySpark, Java or the executors of a cluster are missing, or Spark failed."""

    code = "spark_unavailable"


class LakeProblem(JobQueueError):
    """The lake or an output file cannot be used or is damaged; nothing is lost."""

    code = "lake_problem"
