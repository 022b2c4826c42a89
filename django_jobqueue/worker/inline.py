"""Running an attempt in the calling thread, inside its transaction if there is one: for tests."""

from __future__ import annotations

import inspect
import time
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import NamedTuple

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from .. import handlers, services
from ..engine.workers import report_progress
from ..handlers import Handler, JobContext, JobExpired
from ..models import Job
from ..signals import job_started
from ..states import FailureReason
from .executor import Around, around, run_atomic, run_plain
from .outcomes import SWALLOWED, Completed, Ending, Failed, ending_for_error
from .results import record_ending, send_finished

# Exceptions that end an attempt, as in a worker. All others are raised, because they are meant for the process that
# runs the handler: Ctrl-C, or pytest.fail() inside a handler.
ENDS_ATTEMPT = (Exception, SystemExit, GeneratorExit, CancelledError, JobExpired)


class Attempt(NamedTuple):
    """A job that was run, how its attempt ended, and the state of the job if it failed."""

    job: Job
    ending: Ending
    failure: services.Failure | None


class Inline:
    """Runs claimed jobs in the calling thread. The caller's transaction stays usable whatever a handler does."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.around: Around | None = around()

    def attempt(self, job: Job) -> Attempt:
        """Run the handler of a claimed job, and record how it ended."""
        began = time.monotonic()
        job_started.send_robust(sender=Job, job=job)
        handler = handlers.find(job.queue_id, job.name)
        if handler is None:
            text = handlers.missing_text(job.queue_id, job.name)
            ending: Ending = Failed(text, for_good=True, reason=FailureReason.NO_HANDLER)
        else:
            ending = self._run(handler, job)
        failure = record_ending(job, ending, self.using)
        send_finished(job, ending, time.monotonic() - began, failure)
        return Attempt(job, ending, failure)

    def _run(self, handler: Handler[..., object, object], job: Job) -> Ending:
        context = _Context(job) if handler.takes_context else None
        run = run_atomic if handler.atomic else self._run_async if handler.is_async else run_plain
        with self._keep_transaction_usable():
            try:
                ending = copy_context().run(run, handler, job, context, self)
            except ENDS_ATTEMPT as error:
                ending = ending_for_error(handler, job, error)
        if context is not None and context.reported is not None:
            report_progress([(job, *context.reported)], using=self.using)
        return ending

    @contextmanager
    def _keep_transaction_usable(self) -> Iterator[None]:
        """Roll back to a savepoint if a statement of the handler failed: it would abort the caller's transaction."""
        connection = connections[self.using]
        if not connection.in_atomic_block:
            yield
            return
        with transaction.atomic(using=self.using):
            yield
            raw = connection.connection
            if raw is not None and raw.info.transaction_status == TransactionStatus.INERROR:
                transaction.set_rollback(True, using=self.using)

    def _run_async(
        self, handler: Handler[..., object, object], job: Job, context: JobContext | None, runs: Inline
    ) -> Ending:
        async def run() -> Ending:
            try:
                with runs.around(job) if runs.around else nullcontext():
                    return Completed(await awaited(handler, job, context))
            except ENDS_ATTEMPT as error:  # here, because asyncio raises SystemExit out of its loop
                return ending_for_error(handler, job, error)
            return SWALLOWED

        return async_to_sync(run)()


async def awaited(handler: Handler[..., object, object], job: Job, context: JobContext | None) -> object:
    """The output of an asynchronous handler."""
    output = handler.call(job, context)
    return await output if inspect.isawaitable(output) else output


class _Context(JobContext):
    """Keeps the last report and writes it when the handler has ended: an asynchronous handler must not wait for SQL."""

    reported: tuple[float, str] | None = None

    def _report(self, fraction: float, text: str) -> None:
        self.reported = (fraction, text)
