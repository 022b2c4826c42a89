"""A server of its own for each module, because it is stopped, killed, filled and locked."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from django.core.management import call_command
from django.db import connections

from django_jobqueue import services
from example_project.postgres import Server, Settings, throwaway
from tests.settings import address

ALIAS = "faults"
OPTIONS = "sslmode=disable&gssencmode=disable"  # so that proxies can read along
PATIENT: dict[str, Any] = {"retry_limit": 50, "retry_delay": 0, "retry_backoff": False}


ClusterType = TypeVar("ClusterType", bound="Cluster")


class Cluster:
    """A migrated server with the queues of the handlers, which the tests' own process knows as ``ALIAS``."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._session: psycopg.Connection[tuple[Any, ...]] | None = None

    def dsn(self, *, port: int | None = None, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@{self.server.host}:{port or self.server.port}/{database}?{OPTIONS}"

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.dsn(**options), autocommit=True)

    def sql(self, query: str, params: Any = None) -> list[tuple[Any, ...]]:
        """Ask in a session that is kept, unless it was ended."""
        try:
            return self._ask(query, params)
        except psycopg.OperationalError:
            if self._session is not None and not self._session.closed:
                raise
        return self._ask(query, params)

    def _ask(self, query: str, params: Any) -> list[tuple[Any, ...]]:
        if self._session is None or self._session.closed:
            self._session = self.connect()
        found = self._session.execute(query.encode(), params)  # as bytes, which may be any text
        return found.fetchall() if found.description else []

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def one(self, query: str, params: Any = None) -> Any:
        return self.sql(query, params)[0][0]

    def prepare(self) -> None:
        connections.settings[ALIAS] = {**copy.deepcopy(connections.settings["default"]), **address(self.dsn())}
        call_command("migrate", database=ALIAS, verbosity=0)
        for name in ("orders", "ledger"):
            services.create_fifo_queue(name, using=ALIAS)
        for name in ("work", "talk"):
            services.create_queue(name, using=ALIAS, retry_limit=50, retry_delay=0, retry_backoff=False)
        self.sql("CREATE TABLE effect (job uuid, n int)")
        connections[ALIAS].close()  # a test may restart the server, also the first: none starts with an open session

    def empty(self) -> None:
        """As it was after ``prepare``, for the next test."""
        self.sql("TRUNCATE jobqueue_job, jobqueue_worker, effect")

    def unfinished(self) -> int:
        return int(self.one("SELECT count(*) FROM jobqueue_job WHERE state <> 'completed'"))

    def active(self) -> int:
        return int(self.one("SELECT count(*) FROM jobqueue_job WHERE state = 'active'"))

    def backends(self, like: str = "%") -> list[int]:
        """Sessions of clients other than this one, by the text of their last statement."""
        query = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND query LIKE %s"
        )
        return [pid for (pid,) in self.sql(query, [like])]


@contextmanager
def prepared(cluster: ClusterType) -> Iterator[ClusterType]:
    """Migrate the cluster's database and let this process use it as ``ALIAS``."""
    try:
        cluster.prepare()
        yield cluster
    finally:
        cluster.close()
        if ALIAS in connections.settings:
            connections[ALIAS].close()
            del connections[ALIAS]
            del connections.settings[ALIAS]


@contextmanager
def started(*, fsync: bool = False, version: int | None = None, settings: Settings | None = None) -> Iterator[Cluster]:
    chosen = {"max_connections": 100, **(settings or {})}
    with throwaway(version, fsync=fsync, settings=chosen) as server, prepared(Cluster(server)) as cluster:
        yield cluster


def has_program(name: str) -> bool:
    return shutil.which(name) is not None
