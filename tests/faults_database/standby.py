"""A primary with a streaming standby: replication can be held back, the primary killed, the standby promoted."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from example_project.postgres import Server, Settings, give_away, start_throwaway
from tests.waiting import until

from .cluster import OPTIONS, Cluster, prepared

SLOT = "standby"
REPLICATION: Settings = {"max_connections": 100, "wal_retrieve_retry_interval": "100ms"}
CHOOSE_PRIMARY = "target_session_attrs=read-write&connect_timeout=3"


class ReplicatedCluster(Cluster):
    """A primary and its standby. The connection string names both, and clients choose the one that accepts writes."""

    def __init__(self, primary: Server, standby: Server) -> None:
        super().__init__(primary)
        self.primary, self.standby = primary, standby

    def dsn(self, *, port: int | None = None, user: str = "postgres", database: str = "postgres") -> str:
        if port is not None:
            return super().dsn(port=port, user=user, database=database)
        hosts = ",".join(f"{server.host}:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://{user}@{hosts}/{database}?{OPTIONS}&{CHOOSE_PRIMARY}"

    def ask(self, server: Server, query: str) -> Any:
        """The first value that one of the two servers answers with."""
        with psycopg.connect(super().dsn(port=server.port), autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def write_position(self) -> str:
        return str(self.ask(self.primary, "SELECT pg_current_wal_lsn()"))

    def wait_until_replayed(self) -> float:
        """Wait until the standby has replayed what the primary has committed; returns up to which moment."""
        moment, position = time.monotonic(), self.write_position()
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
        until(lambda: self.ask(self.standby, replayed), f"the standby has replayed {position}")
        return moment

    def hold_back(self) -> float:
        """Stop shipping WAL to the standby; returns up to which moment the standby has everything.

        A stopped process keeps its connection, so neither server notices before ``wal_receiver_timeout``.
        """
        moment = self.wait_until_replayed()
        os.kill(self.ask(self.primary, "SELECT pid FROM pg_stat_replication"), signal.SIGSTOP)
        return moment

    def make_synchronous(self) -> None:
        """From now on a commit is acknowledged when the standby has written it to disk, too."""
        with psycopg.connect(super().dsn(port=self.primary.port), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{SLOT}'".encode())
            connection.execute("SELECT pg_reload_conf()")
        is_synchronous = "SELECT sync_state = 'sync' FROM pg_stat_replication"
        until(lambda: self.ask(self.primary, is_synchronous), "the standby is synchronous")

    def promote(self) -> float:
        """Make the standby accept writes; returns when it did."""
        assert self.ask(self.standby, "SELECT pg_promote(wait => true, wait_seconds => 30)"), "not promoted"
        until(lambda: not self.ask(self.standby, "SELECT pg_is_in_recovery()"), "the standby accepts writes")
        return time.monotonic()

    def fail_over(self) -> float:
        """Kill the primary and promote the standby; returns when the primary was killed."""
        killed = kill(self.primary)
        self.promote()
        return killed

    def rewind_old_primary(self) -> None:
        """Make the killed primary the standby of the promoted one, as an operator does, and start it.

        Only with checksums, which PostgreSQL 18 has by default.
        """
        source = f"host={self.standby.host} port={self.standby.port} user={self.standby.user} dbname=postgres"
        arguments = ["--target-pgdata", str(self.primary.data), "--source-server", source, "--no-sync"]
        # pg_rewind copies the settings of its source, which name the slot; slots themselves are not replicated.
        self.ask(self.standby, f"SELECT pg_create_physical_replication_slot('{SLOT}')")
        self.primary.run("pg_rewind", *arguments, "--write-recovery-conf")
        self.primary.start()


def kill(server: Server) -> float:
    """End all processes of a server at once, as the loss of its machine does; returns when."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGSTOP)  # or it would start others and tell the clients
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    pids = [*map(int, children), postmaster]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: not any(_is_alive(pid) for pid in pids), "the server's processes are gone")
    # In a container without an init process the postmaster stays a zombie, and its lock file would keep out the next.
    (server.data / "postmaster.pid").unlink()
    return killed


def _is_alive(pid: int) -> bool:
    """Whether it runs; a process that its parent has not waited for does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@contextmanager
def replicated(*, version: int | None = None, synchronous: bool = False) -> Iterator[ReplicatedCluster]:
    """A migrated primary and a standby that streams from it; both are gone afterwards."""
    primary = start_throwaway(version, fsync=True, settings=REPLICATION)
    try:
        standby = start_standby(primary)
        try:
            with prepared(ReplicatedCluster(primary, standby)) as cluster:
                if synchronous:
                    cluster.make_synchronous()
                yield cluster
        finally:
            standby.close()
    finally:
        primary.close()


def start_standby(primary: Server, *, port: int = 0) -> Server:
    """Copy a running primary and stream from it through a replication slot; on any free port unless one is named."""
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-postgres-"))
    give_away(folder)
    standby = Server(folder, primary.version, dict(primary.settings), port)
    try:
        source = f"host={primary.host} port={primary.port} user={primary.user} application_name={SLOT}"
        arguments = [f"--pgdata={standby.data}", f"--dbname={source}", "--checkpoint=fast", "--no-sync"]
        primary.run("pg_basebackup", *arguments, "--write-recovery-conf", "--create-slot", f"--slot={SLOT}")
        standby.create()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    standby.watch("immediate", remove=True)
    try:
        standby.start()
    except BaseException:
        standby.close()
        raise
    return standby
