"""The laboratory's workers: they complete, fail, give back, are handed the next, and now and then crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from time import monotonic_ns as now
from uuid import uuid4

from django.db import OperationalError, connection

from django_jobqueue import services
from django_jobqueue.exceptions import ClaimLost, InvalidTransition, JobNotFound
from django_jobqueue.models import Job
from django_jobqueue.states import JobState

from .race_lab import Attempt, Casualty, Plan, Report, here
from .race_roles import TOO_LATE, Undo, callers_transaction, is_callers, pause


def fetch(plan: Plan, chance: random.Random, report: Report, number: int) -> None:
    """A worker that completes, fails, gives back, is handed the next, and now and then crashes and starts anew."""
    generation = 0
    ghosts: list[Job] = []
    while not here.signals.all_done.is_set():
        worker = _Worker(plan, chance, report, f"worker-{number}-{generation}", number, ghosts)
        worker.live()
        ghosts = [job for job, _ in worker.held]
        generation += 1


class _Crash(Exception):
    pass


class _Worker:
    def __init__(
        self, plan: Plan, chance: random.Random, report: Report, name: str, number: int, ghosts: list[Job]
    ) -> None:
        self.plan, self.chance, self.report, self.name = plan, chance, report, name
        self.incarnation = uuid4()
        self.tags = ["special"] if plan.tags and number % 2 else []
        self.bookmark = services.Bookmark(seconds=0.05) if number < 2 else None
        self.ghosts = ghosts  # what the one before it held when it crashed
        self.held: list[tuple[Job, Attempt]] = []

    def live(self) -> None:
        try:
            while not here.signals.all_done.is_set():
                if self.ghosts and self.chance.random() < 0.1:
                    self._haunt(self.ghosts.pop())
                if not self.held:
                    self._fetch()
                if not self.held:
                    pause(self.chance, 1, 0.02)
                    continue
                pause(self.chance, 0.2, 0.003)
                self._finish()
        except _Crash:
            for _, attempt in self.held:
                attempt.ended = attempt.ended or now()
            self.report.counts["crashes"] += 1
            leased = self.chance.random() < 0.3 and all(self._lease(job) for job, _ in self.held)
            connection.close()
            here.signals.casualties.put(Casualty(self.name, self.incarnation, leased))

    def _haunt(self, job: Job) -> None:
        """A late result: it counts until another worker begins the job, then it changes nothing."""
        try:
            services.complete(job, {"by": "a ghost"})
        except TOO_LATE:
            self.report.counts["ghosts refused"] += 1
        else:
            self.report.counts["ghosts accepted"] += 1
            self.report.completed.append(job.pk)

    def _lease(self, job: Job) -> bool:
        """Whether the job returns to the queue by itself, because its lease is not renewed."""
        try:
            services.set_visibility(job, 0.05)
        except TOO_LATE:
            return False
        self.report.counts["leases left to run out"] += 1
        return True

    def _fetch(self) -> None:
        called = now()
        limit = self.chance.choice((1, 1, 3, 10, 30))
        jobs = self._fetch_in_transaction(limit) if self.chance.random() < 0.05 else self._claim(limit)
        self._take(jobs, called)

    def _claim(self, limit: int) -> list[Job]:
        return services.fetch(self.plan.queue, limit, tags=self.tags, worker=self.name, incarnation=self.incarnation,
                              bookmark=self.bookmark)  # fmt: skip

    def _fetch_in_transaction(self, limit: int) -> list[Job]:
        """A claim that is committed late, or not at all."""
        try:
            with callers_transaction("READ COMMITTED"):
                jobs = self._claim(limit)
                pause(self.chance)
                if self.chance.random() < 0.5:
                    raise Undo
        except Undo:
            self.report.counts["claims rolled back"] += 1
            return []
        except OperationalError as error:
            if not is_callers(error):
                raise
            return []
        return jobs

    def _take(self, jobs: list[Job], called: int) -> None:
        started = now()
        for job in jobs:
            attempt = Attempt(job.pk, job.singleton_key, job.seq, job.attempt, called, started)
            self.report.attempts.append(attempt)
            self.held.append((job, attempt))

    def _finish(self) -> None:
        self._perhaps_crash()
        if not self.plan.finish_isolation and self.chance.random() < 0.5:
            self._finish_batch()
        while self.held:
            job, attempt = self.held[0]
            attempt.ended = attempt.ended or now()
            self._again_after_conflict(partial(self._finish_one, job))
            self.held.pop(0)
            self._perhaps_crash()

    def _perhaps_crash(self) -> None:
        if self.chance.random() < self.plan.crashes and not here.signals.all_done.is_set():
            raise _Crash

    def _finish_batch(self) -> None:
        """What our workers do: many at once, and each lane handed over."""
        called = now()
        batch, self.held = self.held, []
        failing = {job.pk for job, _ in batch if self.chance.random() < self.plan.fails}
        for _, attempt in batch:
            attempt.ended = called
        finished = services.finish_many(
            [(job, {"by": self.name}) for job, _ in batch if job.pk not in failing],
            [(job, "it failed") for job, _ in batch if job.pk in failing],
            hand_over=True, tags=self.tags, worker=self.name, incarnation=self.incarnation,
        )  # fmt: skip
        self.report.completed += finished.completed
        self.report.stopped += finished.stopped
        self.report.counts["handed over"] += len(finished.next)
        self.report.counts["busy"] += len(finished.busy)
        self._too_late(len(finished.lost))
        self.held += [(job, attempt) for job, attempt in batch if job.pk in finished.busy]
        self._take(finished.next, called)

    def _finish_one(self, job: Job) -> None:
        try:
            self._verb(job)
        except InvalidTransition as error:
            if error.state == JobState.CANCELLING:
                self._acknowledge(job)
            else:
                self._too_late(1)
        except (ClaimLost, JobNotFound):
            self._too_late(1)

    def _acknowledge(self, job: Job) -> None:
        try:
            services.acknowledge_cancellation(job, was_executing=True)
        except TOO_LATE:
            self._too_late(1)
        else:
            self.report.stopped.append(job.pk)

    def _verb(self, job: Job) -> None:
        draw = self.chance.random()
        if draw < self.plan.fails:
            services.fail(job, "it failed", retry_after=self.chance.choice((None, 0, 0.02, 0.1)))
        elif draw < self.plan.fails + 0.02:
            services.set_visibility(job, 0)
        elif draw < self.plan.fails + 0.03:
            services.give_back(job, "not now", delay=self.chance.choice((None, 0.05)))
        elif draw < self.plan.fails + 0.04:
            self._complete_and_undo(job)
            self._complete(job)
        else:
            self._complete(job)

    def _complete(self, job: Job) -> None:
        if self.plan.finish_isolation:
            with callers_transaction(self.plan.finish_isolation):
                services.complete(job, {"by": self.name})
                pause(self.chance, 0.2, 0.005)
        else:
            services.complete(job, {"by": self.name})
        self.report.completed.append(job.pk)

    def _complete_and_undo(self, job: Job) -> None:
        """A completion that is not committed, because of an error or because the connection breaks."""
        try:
            with callers_transaction("READ COMMITTED"):
                services.complete(job)
                pause(self.chance)
                if self.chance.random() < 0.3:
                    connection.close()
                    raise _Crash
                raise Undo
        except Undo:
            self.report.counts["completions rolled back"] += 1

    def _again_after_conflict(self, work: Callable[[], None]) -> None:
        """A conflict inside a caller's transaction is the caller's to try again; our own never lets one through."""
        while True:
            try:
                return work()
            except OperationalError as error:
                if not self.plan.finish_isolation or not is_callers(error):
                    raise
                self.report.counts["conflicts of a caller"] += 1

    def _too_late(self, jobs: int) -> None:
        self.report.counts["too late"] += jobs
