"""Who is compared, how each is installed, and how its workers are started with its best documented settings.

Only the standard library is used here, because the peers import this in environments of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

TEXT = "x" * 80  # with the number, and as JSON, about 100 bytes

Commands = Callable[[str, int], list[list[str]]]


@dataclass(frozen=True)
class Peer:
    """A library. ``commands`` tells, for its Python and a number of processes, what to start."""

    name: str
    commands: Commands
    unfinished: str  # a query that finds a row as long as some job is not finished
    requirements: tuple[str, ...] = ()  # none: it runs where we run
    python: tuple[int, int] = (3, 11)
    drain_bar: float | None = None  # how many times as fast we must drain
    drained: int = 60_000  # so many jobs that draining takes seconds
    bulk: int = 10_000
    env: dict[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return f"tests.benchmarks.peers.{self.name.replace('-', '_')}"


def _times(processes: int, *command: str) -> list[list[str]]:
    return [list(command) for _ in range(processes)]


def _ours(python: str, processes: int) -> list[list[str]]:
    return [[python, "-m", "django", "runjobs", "--queue=plain", f"--processes={processes}", "--no-schedules"]]


def _pgqueuer(python: str, processes: int) -> list[list[str]]:
    return _times(processes, python, "-m", "tests.benchmarks.peers.pgqueuer")


def _procrastinate(python: str, processes: int) -> list[list[str]]:
    # A task takes nothing, so that more than some at once only wait for connections.
    app = "--app=tests.benchmarks.peers.procrastinate.app"
    return _times(processes, python, "-m", "procrastinate", app, "worker", "--queues=bench", "--concurrency=10")


def _django_tasks_db(python: str, processes: int) -> list[list[str]]:
    # It has no threads and no NOTIFY; a tenth of a second is how often it looks when idle.
    worker = ("db_worker", "--interval=0.1", "--no-startup-delay", "--verbosity=0")
    return _times(processes, python, "-m", "django", *worker)


def _django_ox(python: str, processes: int) -> list[list[str]]:
    # No NOTIFY either; its threads wait for each other's claims, so that a few are best.
    options = [f"--processes={processes}", "--concurrency=4", "--interval=0.1", "--verbosity=0"]
    return [[python, "-m", "django", "ox_worker", *options]]


_UNFINISHED = "SELECT 1 FROM {} WHERE {} IN ({}) LIMIT 1"
_DJANGO = {"DJANGO_SETTINGS_MODULE": "tests.benchmarks.peers.django_settings"}

OURS = Peer(
    "ours",
    _ours,
    _UNFINISHED.format("jobqueue_job", "state", "'created', 'active'"),
    env={"DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings"},
)
PEERS = [
    Peer(
        "pgqueuer",
        _pgqueuer,
        "SELECT 1 FROM pgqueuer LIMIT 1",
        ("pgqueuer[asyncpg]>=1.6,<2", "uvloop"),
        drain_bar=1.5,
    ),
    Peer(
        "procrastinate",
        _procrastinate,
        _UNFINISHED.format("procrastinate_jobs", "status", "'todo', 'doing'"),
        ("procrastinate>=3.10,<4", "psycopg[binary,pool]"),
        drain_bar=20,
        drained=3_000,
    ),
    Peer(
        "django-tasks-db",
        _django_tasks_db,
        _UNFINISHED.format("django_tasks_database_dbtaskresult", "status", "'READY', 'RUNNING'"),
        ("django-tasks-db>=0.13,<1", "Django>=6", "psycopg[binary]"),
        python=(3, 12),  # as Django 6
        drain_bar=20,
        drained=3_000,
        bulk=2_000,
        env=_DJANGO,
    ),
    Peer(
        "django-ox",
        _django_ox,
        _UNFINISHED.format("django_ox_oxtask", "status", "'READY', 'RUNNING'"),
        ("django-ox>=1.9,<2", "Django>=6", "psycopg[binary]"),
        python=(3, 12),
        drain_bar=20,
        drained=3_000,
        bulk=10_000,
        env=_DJANGO,
    ),
]
