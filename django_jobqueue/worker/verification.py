"""Comparing the claims that a child holds with those in the database."""

from __future__ import annotations

from ..engine.workers import claims_of, give_back_claims
from ..models import Job
from ..states import JobState
from .claims import HeldClaims
from .executor import Executor


class Verification:
    """Stops handlers of cancelled jobs and of lost claims, and returns jobs that the child does not hold."""

    def __init__(self, claims: HeldClaims, executor: Executor, stop_seconds: float) -> None:
        self._claims, self._executor, self._stop_seconds = claims, executor, stop_seconds
        self.abandoned: list[Job] = []  # jobs of lost claims whose handlers still run
        self.stop_by: float | None = None  # while it waits for handlers of lost claims: when they must have ended

    def is_overdue(self, now: float) -> bool:
        """Whether handlers of lost claims did not stop in time."""
        return self.stop_by is not None and now > self.stop_by

    def compare(self, now: float, *, reconnected: bool = False) -> int:
        """Compare once, and return how many jobs were returned to the queue.

        No fetch may be under way, because all claims must be known. Handlers of lost claims are stopped before jobs are
        returned: the server may lack a claim that handed a lane over, and the job of the lost claim and the next job of
        its lane would run at the same time.
        """
        identity = self._claims.identity
        known = claims_of(identity.name, identity.incarnation, using=identity.using)
        held = {job.claim: job for job in self._claims.jobs.values()}
        for lost in held.keys() - known.keys():
            held[lost].begin_by = 0.0
        running = self._executor.running()
        cancelled = {claim for claim, state in known.items() if state == JobState.CANCELLING}
        self._executor.cancel(job for job in running if job.claim in cancelled)
        abandoned = self.abandoned = [job for job in running if job.claim not in known]
        self._executor.abandon(abandoned)
        unheld = known.keys() - held.keys()
        if abandoned and (unheld or reconnected or self.stop_by):
            self.stop_by = self.stop_by or now + self._stop_seconds
            return 0
        self.stop_by = None
        why = "its claim was not confirmed"
        return give_back_claims(identity.name, identity.incarnation, unheld, why, using=identity.using)
