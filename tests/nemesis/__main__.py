"""Tries to break every promise: ``make nemesis ARGS="--minutes 10 --seed 7 --configuration default"``.

Real workers, senders, operators and streamers run on all kinds of queues, and a plan of strikes that follows from the
seed is carried out. Afterwards a checker that knows nothing of how the queue is built goes through what the processes
wrote down themselves. A run that fails keeps its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from . import history
from .checker import Breach, Row, World, check, orders
from .configurations import CONFIGURATIONS
from .variants import RULES, STREAMS

if TYPE_CHECKING:
    from .stage import Stage
    from .strikes import Striker

DRAIN_SECONDS = 60.0  # without a job that ends, until the rest counts as stuck
SETTLE_SECONDS = 10.0  # after a strike until everything runs again
MOST_LOAD = 8.0  # runnable processes per processor; above it, the machine delays all keys
LOAD_LAGS_SECONDS = 30.0  # it is an average of the last minute
SHOWN = 20

ROWS = """
SELECT id::text, queue_id, CASE WHEN group_key <> '' THEN group_key ELSE singleton_key END, seq, state, attempt,
    claim_number, output->>'token', extract(epoch FROM started_at)::float8 - %s
FROM jobqueue_job WHERE queue_id NOT LIKE 'passing-%%' ORDER BY seq
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--configuration", choices=CONFIGURATIONS, default="default")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything it started is ended
    if CONFIGURATIONS[given.configuration].pooler and shutil.which("pgbouncer") is None:
        parser.error("this configuration needs PgBouncer: apt-get install pgbouncer")
    print(f"nemesis: seed {given.seed}, configuration {given.configuration}, {given.minutes:g} minutes", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-nemesis-"))
    breaches, figures = run(folder, given.configuration, given.seed, given.minutes * 60)
    print(json.dumps(figures, indent=2))
    if not breaches:
        shutil.rmtree(folder, ignore_errors=True)
        print("no promise was broken")
        return 0
    for kind, number in Counter(breach.kind for breach in breaches).most_common():
        print(f"{kind}: {number}")
    for breach in breaches[:SHOWN]:
        print(f"  {breach.kind}: {breach.text}")
    again = f"--minutes {given.minutes:g} --seed {given.seed} --configuration {given.configuration}"
    print(f'history, tables and logs: {folder}\nagain: make nemesis ARGS="{again}"')
    return 1


def run(folder: Path, name: str, seed: int, seconds: float) -> tuple[list[Breach], dict[str, Any]]:
    """Set up Django for this configuration, which can be done once in a process, and see what breaks."""
    configuration = CONFIGURATIONS[name]
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.nemesis.settings", history.FOLDER: str(folder),
                   "NEMESIS_SETTINGS": json.dumps(configuration.settings)}  # fmt: skip
    django.setup()
    from .stage import Stage
    from .strikes import Striker, plan

    strikes = plan(seed, seconds, configuration.without)
    with Stage(configuration, folder, seed) as stage:
        striker, began, first_slot = Striker(stage), time.monotonic(), datetime.now(UTC)
        for strike in strikes:
            _wait(began + strike.at, striker.disturbed)
            striker.strike(strike)
        _wait(began + seconds, striker.disturbed)
        striker.finish()
        ended, last_slot = time.monotonic(), datetime.now(UTC)
        stage.stop_sending()
        left = stage.drain(DRAIN_SECONDS)
        exits = stage.stop()
        world = _world(stage, striker, began, ended, first_slot, last_slot)
        stage.keep_tables()
    breaches = check(world)
    figures = {
        "sent": len(world.sent),
        "runs": len(world.runs),
        "jobs": len(world.rows),
        "unfinished": left,
        "keys": len(world.by_key),
        "orders checked": sum(1 for _ in orders(world)),
        "strikes": dict(sorted(striker.counts.items())),
        "ended with": exits,
        "quiet seconds": round(sum(end - begin for begin, end in world.quiet)),
    }
    return breaches, figures


def _wait(moment: float, disturbed: list[tuple[float, float]]) -> None:
    """Until that moment; times in which the machine has far more to do than it can count as disturbed."""
    while (left := moment - time.monotonic()) > 0:
        if os.getloadavg()[0] > MOST_LOAD * (os.cpu_count() or 1):
            disturbed.append((time.monotonic() - LOAD_LAGS_SECONDS, time.monotonic() + 1.0))
        time.sleep(min(left, 1.0))


def _world(stage: Stage, striker: Striker, began: float, ended: float, first: datetime, last: datetime) -> World:
    from .stage import rows

    jobs = [Row(*values) for values in rows(stage.dsn, ROWS, time.time() - time.monotonic())]
    effects = Counter(dict(rows(stage.dsn, "SELECT job::text, count(*) FROM effect GROUP BY 1")))
    slots = rows(stage.dsn, "SELECT slot, count(job_id) FROM jobqueue_schedulerun WHERE NOT by_hand GROUP BY slot")
    slot_jobs = Counter({("tick", slot.astimezone(UTC).isoformat()): number for slot, number in slots})
    return World(
        RULES, history.read(stage.folder), jobs, effects, slot_jobs, _due(first, last), STREAMS,
        striker.lost_between, _quiet(striker.disturbed, began, ended),
    )  # fmt: skip


def _due(first: datetime, last: datetime) -> frozenset[tuple[str, str]]:
    """The whole minutes between, without the first and the last, at which things began and ended."""
    minutes = range(int(first.timestamp()) // 60 + 1, int(last.timestamp()) // 60)
    return frozenset(("tick", datetime.fromtimestamp(60 * minute, UTC).isoformat()) for minute in minutes)


def _quiet(disturbed: list[tuple[float, float]], began: float, ended: float) -> list[tuple[float, float]]:
    found, at = [], began + SETTLE_SECONDS
    for begin, end in sorted(disturbed):
        if begin > at:
            found.append((at, begin))
        at = max(at, end + SETTLE_SECONDS)
    return [*found, (at, ended)] if ended > at else found


if __name__ == "__main__":
    sys.exit(main())
