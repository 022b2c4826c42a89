"""Jobs whose handler this process lacks, as during a deploy: they are left to a worker that has it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from .. import handlers
from ..conf import Settings
from ..engine import missing_handlers
from ..engine.missing_handlers import HandlerKey, announced
from ..log_texts import one_line
from ..models import Job
from .claims import HeldClaims

logger = logging.getLogger("django_jobqueue.worker")

MOST_LACKED = 1_000  # names that this process remembers; clients may send jobs of any name


class _Announcement(NamedTuple):
    """What the row of this process says; ``None`` as handlers says that it takes jobs of every name."""

    queues: tuple[str, ...] = ()
    handlers: tuple[str, ...] | None = ()
    lacks: tuple[str, ...] = ()


class MissingHandlers:
    """Announces what this process can run, and returns jobs that it cannot run to the queue.

    While another live worker announces the handler of a job, this process claims no job of that name, so that the other
    worker can claim it at once. Otherwise the job waits until a worker announces the handler, or until
    ``HANDLER_GRACE_SECONDS`` are over.
    """

    def __init__(self, claims: HeldClaims, settings: Settings, *, runs_all: bool) -> None:
        self._claims, self._grace = claims, settings.HANDLER_GRACE_SECONDS
        self._me, self._using = claims.identity.incarnation, claims.identity.using
        self._runs_all = runs_all  # whether one handler runs all jobs, even those that name another
        self._said: _Announcement | None = None
        self._queues: tuple[str, ...] = ()
        self._by_hand: frozenset[str] = frozenset()
        self._lacked: dict[HandlerKey, bool] = {}  # the handlers it lacks, and whether another live worker has each
        self._skipped: Mapping[str, Sequence[str]] = {}  # the names whose jobs it does not claim, by queue

    # ------------------------------------------------------------------------------------------ names that are skipped

    def skipped_in(self, queue: str) -> Sequence[str]:
        """The names of handlers whose jobs are not claimed from this queue. Called from any thread."""
        return self._skipped.get(queue, ())

    def skipped(self) -> list[str]:
        """The same for all queues together."""
        return sorted({name for names in self._skipped.values() for name in names}) if self._skipped else []

    def _update_skipped(self) -> None:
        skipped: dict[str, list[str]] = defaultdict(list)
        for (queue, name), has_other in self._lacked.items():
            if has_other:
                skipped[queue].append(name)
        for queue in self._by_hand:
            skipped[queue].append("")
        self._skipped = dict(skipped)

    # ------------------------------------------------------------------------------------------------------ announcing

    def refresh(self, queues: Iterable[str], by_hand: Iterable[str]) -> None:
        """Announce queues and handlers if they changed, and look what other workers have and lack.

        ``by_hand`` are queues whose jobs without a name are left to code that is not a worker.
        """
        self._queues, self._by_hand = tuple(queues), frozenset(by_hand)
        has_more = self._announce()
        if not self._runs_all:
            self._look_elsewhere()
            lacked = missing_handlers.lacked_elsewhere(self._me, using=self._using)
            if has_more or any(self._has(name) for name in lacked):
                for queue in self._queues:
                    missing_handlers.release_waiting(queue, partial(handlers.has, queue), using=self._using)
        self._update_skipped()

    def _announce(self) -> bool:
        """Store what this process can run, if it changed. Returns whether it has other queues or handlers than before.

        It may have more handlers than before: a task can be found by its path.
        """
        before = self._said
        said = _Announcement(
            self._queues, None if self._runs_all else self._known(), tuple(sorted(map(announced, self._lacked)))
        )
        if said != before:
            missing_handlers.announce(self._me, *said, using=self._using)
            self._said = said
        return before is None or said[:2] != before[:2]

    def _known(self) -> tuple[str, ...]:
        unnamed = [announced((queue, "")) for queue in self._queues if handlers.has(queue, "")]
        return (*sorted(handlers.registry.by_name), *unnamed)

    def _has(self, announcement: str) -> bool:
        known = self._said.handlers if self._said else ()
        return announcement in (known or ()) or handlers.has("", announcement)

    def _look_elsewhere(self) -> None:
        """Ask which of the handlers it lacks other workers have."""
        if self._lacked:
            found = missing_handlers.had_elsewhere(self._me, self._lacked, using=self._using)
            self._lacked = {key: key in found for key in self._lacked}

    # ----------------------------------------------------------------------------------------------- jobs it cannot run

    def give_back(self, jobs: Iterable[Job]) -> list[tuple[Job, str]]:
        """Return claimed jobs to the queue whose handler is missing. Returns those that must fail instead, and why."""
        met: dict[HandlerKey, list[Job]] = defaultdict(list)
        for job in jobs:
            met[job.queue_id, job.name].append(job)
        fresh = self._note(met)
        self._look_elsewhere()
        self._update_skipped()
        if fresh:
            self._announce()
            for key in fresh:
                self._log(key)
        return [late for key, some in met.items() for late in self._give_back(key, some)]

    def _note(self, met: Iterable[HandlerKey]) -> list[HandlerKey]:
        """Remember that it lacks these handlers; returns those that are new."""
        fresh = sorted(set(met) - self._lacked.keys())
        if len(self._lacked) + len(fresh) > MOST_LACKED:
            self._lacked = {key: True for key, has_other in self._lacked.items() if has_other}
        self._lacked |= dict.fromkeys(fresh, False)
        return fresh

    def _give_back(self, key: HandlerKey, jobs: list[Job]) -> list[tuple[Job, str]]:
        text, has_other = handlers.missing_text(*key), self._lacked[key]
        if has_other:
            delays = {job.id: 0.0 for job in jobs}
        else:
            waited = missing_handlers.seconds_waited(jobs, using=self._using)
            delays = {job.id: self._grace - waited[job.id] for job in jobs if waited[job.id] < self._grace}
        staying = [job for job in jobs if job.id in delays]
        missing_handlers.return_unhandled(staying, text, delays, using=self._using)
        if staying and not has_other and missing_handlers.had_elsewhere(self._me, [key], using=self._using):
            # A worker that has the handler started meanwhile, and looked for such jobs before these waited.
            missing_handlers.release_waiting(key[0], lambda name: name == key[1], using=self._using)
        return [(job, text) for job in jobs if job.id not in delays]

    def _log(self, key: HandlerKey) -> None:
        worker, text = self._claims.identity.name, one_line(handlers.missing_text(*key))
        facts = {"worker": worker, "queue": key[0], "handler": key[1], "seconds": self._grace}
        if self._lacked[key]:
            logger.info(
                "handler is missing: queue %s: %s; worker %s leaves its jobs to a worker that has it",
                key[0],
                text,
                worker,
                extra=facts,
            )
        else:
            logger.warning(
                "handler is missing: queue %s: %s; no live worker has it, its jobs wait and fail after %g s",
                key[0],
                text,
                self._grace,
                extra=facts,
            )

    def log_left(self) -> None:
        """At the end of ``--drain``: log which jobs are left because their handler is missing."""
        for queue, name in sorted(self._lacked):
            left = Job.objects.using(self._using).in_queue(queue).eligible().filter(name=name).count()
            if left:
                logger.warning(
                    "jobs are left: queue %s, jobs %d: %s",
                    queue,
                    left,
                    one_line(handlers.missing_text(queue, name)),
                    extra={"worker": self._claims.identity.name, "queue": queue, "handler": name, "jobs": left},
                )
