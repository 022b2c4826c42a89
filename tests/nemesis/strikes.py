"""What is done to a run, and the plan of it: the same seed makes the same plan."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import Error, connection, transaction

from django_jobqueue import services
from django_jobqueue.exceptions import JobQueueError
from django_jobqueue.models import Job

from .configurations import FAILOVERS
from .history import write

if TYPE_CHECKING:
    from .stage import Stage


@dataclass(frozen=True)
class Strike:
    """One of the plan: when, what, and a number in [0, 1) by which it chooses its victim."""

    at: float
    name: str
    draw: float
    seconds: float


# How often each comes, beside the others, and for how long it lasts.
KINDS: dict[str, tuple[int, tuple[float, float]]] = {
    "kill_child": (10, (0, 0)),
    "kill_supervisor": (3, (0, 0)),
    "kill_housekeeping": (3, (0, 0)),
    "kill_streamer": (2, (0, 0)),
    "stop_process": (4, (0.5, 12.0)),
    "terminate_backends": (4, (0, 0)),
    "restart_fast": (2, (0, 0)),
    "restart_immediate": (2, (0, 0)),
    "vacuum_full": (1, (0, 0)),
    "lock_row": (4, (1.0, 6.0)),
    "lock_key": (4, (1.0, 6.0)),
    "lock_table": (1, (0.5, 2.0)),
    "slow_network": (2, (1.0, 4.0)),
    "cut_network": (3, (0.5, 6.0)),
    "partition": (2, (0, 0)),
    "fail_over": (1, (0, 0)),
    "fail_over_without_the_last_seconds": (1, (1.0, 2.0)),
}
LULL_SECONDS = 30.0
DISTURBS_ALL = frozenset(
    {"restart_fast", "restart_immediate", "vacuum_full", "lock_table", "fail_over",
     "fail_over_without_the_last_seconds", "terminate_backends", "kill_supervisor", "stop_process", "cut_network",
     "slow_network", "kill_housekeeping", "kill_child"}
)  # fmt: skip


def plan(seed: int, seconds: float, without: frozenset[str]) -> list[Strike]:
    """Strikes for that long, and a failover every three minutes, or one.

    At the end of each minute come only strikes that concern one key, because others must not notice those.
    """
    chance = random.Random(seed)
    names = [name for name in KINDS if name not in without | FAILOVERS]
    strikes, at = [], 3.0
    while at < seconds:
        possible = [name for name in names if at % 60 < 60 - LULL_SECONDS or name not in DISTURBS_ALL]
        name = chance.choices(possible, [KINDS[name][0] for name in possible])[0]
        strikes.append(Strike(at, name, chance.random(), chance.uniform(*KINDS[name][1])))
        at += chance.uniform(1.0, 6.0)
    if failovers := sorted(FAILOVERS - without):
        number = max(1, round(seconds / 180))
        for place in range(number):
            name = chance.choice(failovers)
            at = seconds * (place + 0.5) / number // 60 * 60 + 20.0
            strikes.append(Strike(at, name, chance.random(), chance.uniform(*KINDS[name][1])))
    return sorted(strikes, key=lambda strike: strike.at)


class Striker:
    """Carries out the plan; strikes that last go on in threads of their own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.counts: dict[str, int] = {}
        self.disturbed: list[tuple[float, float]] = []
        self.lost_between: list[tuple[float, float]] = []
        self._lasting: list[threading.Thread] = []

    def strike(self, strike: Strike) -> None:
        self.counts[strike.name] = self.counts.get(strike.name, 0) + 1
        work: Callable[[Strike], None] = getattr(self, strike.name)
        if strike.seconds and strike.name not in FAILOVERS:
            thread = threading.Thread(target=self._noted, args=(work, strike), daemon=True)
            thread.start()
            self._lasting.append(thread)
        else:
            self._noted(work, strike)

    def finish(self) -> None:
        for thread in self._lasting:
            thread.join(60)

    def _noted(self, work: Callable[[Strike], None], strike: Strike) -> None:
        called = time.monotonic()
        outcome = "done"
        try:
            work(strike)
        except (psycopg.Error, Error, JobQueueError, ProcessLookupError, IndexError) as error:
            outcome = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            write("strike", name=strike.name, called=called, seconds=strike.seconds, outcome=outcome)
            if strike.name in DISTURBS_ALL:
                self.disturbed.append((called, time.monotonic()))

    # ------------------------------------------------------------------------------------------------------ processes

    def kill_child(self, strike: Strike) -> None:
        os.kill(_one(self.stage.children(), strike.draw), signal.SIGKILL)

    def kill_housekeeping(self, strike: Strike) -> None:
        os.kill(_one(self.stage.housekeepers(), strike.draw), signal.SIGKILL)

    def kill_supervisor(self, strike: Strike) -> None:
        """With all of its processes, as the loss of a machine does; it is started again."""
        worker = _one(self.stage.workers, strike.draw)
        worker.kill()
        worker.start()

    def kill_streamer(self, strike: Strike) -> None:
        streamer = _one(self.stage.streamers, strike.draw)
        streamer.kill()
        streamer.start()

    def stop_process(self, strike: Strike) -> None:
        """A machine that hangs: the process goes on later, and must notice that its claims are gone."""
        pid = _one([*self.stage.children(), *self.stage.housekeepers()], strike.draw)
        called = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(strike.seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        write("paused", process=pid, called=called)

    # ------------------------------------------------------------------------------------------------------- database

    def sql(self, query: str, params: Any = None) -> None:
        with psycopg.connect(self.stage.dsn, autocommit=True) as session:
            session.execute(query.encode(), params)

    def terminate_backends(self, strike: Strike) -> None:
        """A third of all sessions."""
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid() AND random() < 0.3"
        )

    def restart_fast(self, strike: Strike) -> None:
        self.stage.primary.restart("fast")

    def restart_immediate(self, strike: Strike) -> None:
        self.stage.primary.restart("immediate")

    def vacuum_full(self, strike: Strike) -> None:
        self.sql("VACUUM FULL jobqueue_job")

    def lock_row(self, strike: Strike) -> None:
        self._hold(strike, "SELECT 1 FROM jobqueue_job WHERE state IN ('created', 'active', 'retry')"
                   " ORDER BY md5(id::text || %s) LIMIT 1 FOR UPDATE SKIP LOCKED", [str(strike.draw)])  # fmt: skip

    def lock_key(self, strike: Strike) -> None:
        """A stranger cancels a waiting job in a transaction that stays open, and then rolls back."""
        try:
            with transaction.atomic():
                waiting = Job.objects.filter(queue__in=["pass", "many-keys", "one-key"], state="created")
                job = waiting.order_by("seq").first()
                if job is not None:
                    services.cancel([job.pk])
                    time.sleep(strike.seconds)
                transaction.set_rollback(True)
        finally:
            connection.close()

    def lock_table(self, strike: Strike) -> None:
        self._hold(strike, "LOCK TABLE jobqueue_job IN SHARE ROW EXCLUSIVE MODE", [])

    def _hold(self, strike: Strike, query: str, params: list[Any]) -> None:
        with psycopg.connect(self.stage.dsn) as session:
            session.execute("SET lock_timeout = '5s'")
            session.execute(query.encode(), params)
            time.sleep(strike.seconds)
            session.rollback()

    def partition(self, strike: Strike) -> None:
        """A queue with a part of the table of its own comes and goes."""
        name = f"passing-{int(strike.draw * 1_000_000)}"
        try:
            services.create_queue(name, partition=True)
            services.delete_queue(name)
        finally:
            connection.close()

    # -------------------------------------------------------------------------------------------------------- network

    def slow_network(self, strike: Strike) -> None:
        self.stage.proxy.delay = 0.02
        time.sleep(strike.seconds)
        self.stage.proxy.delay = 0.0

    def cut_network(self, strike: Strike) -> None:
        """Connections hear nothing more; later they are reset and new ones work."""
        self.stage.proxy.swallow()
        time.sleep(strike.seconds)
        self.stage.proxy.heal()
        self.stage.proxy.reset_all()

    # ------------------------------------------------------------------------------------------------------- failover

    def fail_over(self, strike: Strike) -> None:
        """The standby has everything that was acknowledged."""
        self.stage.make_synchronous()
        self.stage.fail_over()
        self.stage.replace_standby()

    def fail_over_without_the_last_seconds(self, strike: Strike) -> None:
        begin = self.stage.hold_back()
        time.sleep(strike.seconds)
        self.stage.fail_over()
        self.lost_between.append((begin, time.monotonic()))
        self.stage.replace_standby()


def _one(several: list[Any], draw: float) -> Any:
    return several[int(draw * len(several))]
