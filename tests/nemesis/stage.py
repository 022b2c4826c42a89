"""The processes of a run: database servers, workers, senders, operators and streamers."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import Error, connections

from django_jobqueue import services
from example_project.postgres import Server, start_throwaway
from tests.faults.runner import ROOT, children_of, is_alive
from tests.faults_database.cluster import OPTIONS, Cluster
from tests.faults_database.proxy import Proxy
from tests.faults_database.standby import CHOOSE_PRIMARY, REPLICATION, ReplicatedCluster, start_standby
from tests.waiting import until

from .configurations import FAILOVERS, Configuration
from .history import FOLDER, write
from .settings import database
from .variants import SCHEDULE, STREAMS, VARIANTS, WORKED_ON

PROCESSES, CONCURRENCY = 2, 4
START_SECONDS = 120.0


class Program:
    """A process in a session of its own that can be killed and started again."""

    def __init__(self, stage: Stage, name: str, dsn: str, *arguments: str) -> None:
        self.stage, self.name, self.dsn, self.arguments = stage, name, dsn, arguments
        self.start()

    def start(self) -> None:
        with (self.stage.folder / f"{self.name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments], cwd=ROOT, env=self.stage.env(self.dsn, self.name),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """At once with all of its processes, each of which leads a group of its own."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)  # or it would replace them
        for pid in (*children_of(self.pid), self.pid):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self, seconds: float = 60.0) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return -1


class Stage:
    """Everything that runs. Workers of one supervisor reach the database through a proxy, the others directly."""

    def __init__(self, configuration: Configuration, folder: Path, seed: int) -> None:
        self.configuration, self.folder, self.seed = configuration, folder, seed
        self.workers: list[Program] = []
        self.streamers: list[Program] = []
        self.others: list[Program] = []
        self._exits = ExitStack()

    # ---------------------------------------------------------------------------------------------------------- begin

    def __enter__(self) -> Stage:
        try:
            self._start_servers()
            self._prepare()
            self._start_programs()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in (*self.others, *self.streamers, *self.workers):
            program.kill()
        self._keep_log(self.primary)
        self._exits.close()

    def _keep_log(self, server: Server) -> None:
        """A server's folder goes with it; its log may explain a breach."""
        with (self.folder / f"postgres-{server.port}.log").open("ab") as out:
            out.write(server.log.read_bytes())

    def keep_tables(self) -> None:
        """Write the rows in the end beside the histories, for a person who has to understand a breach."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in ("job", "worker", "queue", "schedulerun"):
                with (self.folder / f"{table}.csv").open("wb") as out, connection.cursor() as cursor:
                    query = f"COPY (SELECT * FROM jobqueue_{table}) TO STDOUT WITH (FORMAT csv, HEADER)"
                    with cursor.copy(query.encode()) as copy:
                        for block in copy:
                            out.write(block)

    def _start_servers(self) -> None:
        self.primary = start_throwaway(self.configuration.version, fsync=True, settings=REPLICATION)
        self._exits.callback(self.primary.close)
        self.standby: Server | None = None
        if not self.configuration.without >= FAILOVERS:
            self.standby = start_standby(self.primary)
            self._exits.callback(self.standby.close)
        self.proxy = self._exits.enter_context(Proxy(self.primary.port))
        self.port = self.primary.port
        if self.configuration.pooler:
            from tests.faults_database.test_pooler import pgbouncer

            self.port = self._exits.enter_context(pgbouncer(Cluster(self.primary), pool_size=30))

    @property
    def dsn(self) -> str:
        """The server that accepts writes, for strikes and checks: past every pooler and proxy."""
        return self._dsn(f"{self.primary.host}:{self.primary.port}")

    def _dsn(self, hosts: str, more: str = "") -> str:
        path = f"&options=-csearch_path%3D{self.configuration.schema},public" if self.configuration.schema else ""
        return f"postgresql://postgres@{hosts}/postgres?{OPTIONS}{more}{path}"

    def _direct(self) -> str:
        """What a project configures: both servers if there are two."""
        if self.standby is None:
            return self._dsn(f"{self.primary.host}:{self.port}")
        hosts = ",".join(f"{server.host}:{server.port}" for server in (self.primary, self.standby))
        return self._dsn(hosts, f"&{CHOOSE_PRIMARY}")

    def _prepare(self) -> None:
        """The tables and queues; from here on this process uses the database, too."""
        connections.settings["default"] |= database(self._direct())
        if self.configuration.schema:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {self.configuration.schema}".encode())
        call_command("migrate", verbosity=0)
        for variant in VARIANTS.values():
            create = services.create_fifo_queue if variant.fifo else services.create_queue
            create(variant.queue, **variant.options)
        services.create_schedule(SCHEDULE, "ticking", "* * * * *", handler="work", catch_up="all")
        with connections["default"].cursor() as cursor:
            cursor.execute("CREATE TABLE effect (job uuid)")
        connections["default"].close()

    def env(self, dsn: str, name: str) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.nemesis.settings",
            "NEMESIS_DSN": dsn,
            "NEMESIS_SETTINGS": json.dumps(self.configuration.settings),
            "NEMESIS_LOG": str(self.folder / f"{name}.log"),
            FOLDER: str(self.folder),
            "PYTHONPATH": str(ROOT),
        }

    def _start_programs(self) -> None:
        direct, through = self._direct(), self._dsn(f"127.0.0.1:{self.proxy.port}")
        flags = [f"--processes={PROCESSES}", f"--concurrency={CONCURRENCY}"]
        queues = [f"--queue={queue}" for queue in WORKED_ON]
        self.workers = [
            Program(self, "left", direct, "django", "runjobs", "--name=left", *flags, *queues),
            Program(self, "right", through, "django", "runjobs", "--name=right", *flags, *queues),
            Program(self, "reader", direct, "django", "runjobs", "--name=reader", "--processes=1",
                    "--queue=grouped", "--grouping=round_robin"),
        ]  # fmt: skip
        until(lambda: len(self.children()) == 2 * PROCESSES + 1, "all workers are there", START_SECONDS)
        for name, capacity in STREAMS.items():
            self.streamers.append(Program(self, name, direct, "tests.nemesis.streamer", name, str(capacity)))
        for number in range(2):
            self.others.append(
                Program(self, f"sender-{number}", direct, "tests.nemesis.sender", str(self.seed * 10 + number))
            )
        self.others.append(Program(self, "operator", direct, "tests.nemesis.operators", str(self.seed * 10 + 7)))

    # ------------------------------------------------------------------------------------------------------- processes

    def children(self) -> list[int]:
        """Those that run handlers, as the database knows them."""
        return sorted(pid for worker in self.workers for pid in children_of(worker.pid) if pid in self._registered())

    def housekeepers(self) -> list[int]:
        known = self._registered()
        return sorted(
            pid for worker in self.workers for pid in children_of(worker.pid) if pid not in known and is_alive(pid)
        )

    def _registered(self) -> set[int]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            query = "SELECT pid FROM jobqueue_worker WHERE stopped_at IS NULL AND pid IS NOT NULL"
            return {pid for (pid,) in connection.execute(query)}

    # -------------------------------------------------------------------------------------------------------- failover

    def _pair(self) -> ReplicatedCluster:
        assert self.standby is not None
        return ReplicatedCluster(self.primary, self.standby)

    def make_synchronous(self) -> None:
        self._pair().make_synchronous()

    def hold_back(self) -> float:
        return self._pair().hold_back()

    def fail_over(self) -> None:
        """Kill the primary and promote its standby."""
        pair = self._pair()
        pair.fail_over()
        with psycopg.connect(Cluster(pair.standby).dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
        self.primary, self.standby = pair.standby, None
        self.proxy.target = self.primary.port
        self.proxy.reset_all()
        self._keep_log(pair.primary)
        pair.primary.close()
        self._gone = pair.primary

    def replace_standby(self) -> None:
        """Start a new standby where the old primary was, so that the next failover finds one."""
        self.standby = start_standby(self.primary, port=self._gone.port)
        self._exits.callback(self.standby.close)

    # ------------------------------------------------------------------------------------------------------------- end

    def stop_sending(self) -> None:
        for program in self.others:
            program.stop()

    def drain(self, patience: float) -> int:
        """Mend and wait until every job has ended, or none has for that many seconds; how many have not."""
        fewest, deadline = math.inf, 0.0
        while True:
            left = rows(self.dsn, UNFINISHED, list(_OPEN))
            waiting = [id for id, _, state in left if state in _OPEN]
            dead = [(id, queue) for id, queue, state in left if state not in _OPEN and VARIANTS[queue].rules.blocks]
            if len(left) < fewest:
                fewest, deadline = len(left), time.monotonic() + patience
            if (not dead and not waiting) or time.monotonic() > deadline:
                return len(waiting)
            try:
                self._mend(dead)
            except Error:  # of a session that a strike has ended
                pass
            finally:
                connections["default"].close()
            time.sleep(0.5)

    def _mend(self, dead: list[tuple[str, str]]) -> None:
        for queue in VARIANTS:  # an operator may have lost its connection while a queue was paused
            services.resume(queue)
        for id, queue in dead:
            write("verb", verb="skip", jobs=[id], queue=queue, called=time.monotonic())
        if dead:
            services.skip([id for id, _ in dead], reason="the end of the nemesis")

    def stop(self) -> dict[str, int]:
        """How each program ended."""
        return {program.name: program.stop() for program in (*self.streamers, *self.workers)}


_OPEN = ("created", "retry", "active", "cancelling", "unknown_retry")
UNFINISHED = """
SELECT id::text, queue_id, state FROM jobqueue_job
WHERE queue_id NOT LIKE 'passing-%%' AND (state = ANY(%s) OR state IN ('failed', 'expired'))
"""


def rows(dsn: str, query: str, *params: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode(), params or None).fetchall()
