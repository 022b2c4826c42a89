"""The long version, a command of its own: ``python -m tests.faults.soak --minutes 20``.

First 20,000 strictly ordered jobs over 200 keys, with a kill of a random child every second, again and again with other
seeds until the time is up; then 300,000 jobs that do nothing through one worker, whose memory must stay flat.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

JOBS, KEYS, KILLS, PROCESSES = 20_000, 200, 200, 4
QUIET_JOBS, AT_ONCE = 300_000, 10_000
WARM_UP = 0.2  # of the jobs, before memory is compared
MOST_GROWTH = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--quiet-jobs", type=int, default=QUIET_JOBS)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with_server()
    under_fire(given.minutes * 60, given.jobs, given.seed)
    memory_stays_flat(given.quiet_jobs)
    return 0


def with_server() -> None:
    """A PostgreSQL of our own, unless the environment names one, and the tables in it."""
    if not os.environ.get("JOBQUEUE_TEST_DSN"):
        import atexit

        from example_project.postgres import start_throwaway

        server = start_throwaway(settings={"max_connections": 200})
        atexit.register(server.close)
        os.environ["JOBQUEUE_TEST_DSN"] = server.dsn
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def under_fire(seconds: float, jobs: int, seed: int) -> None:
    from django_jobqueue import services

    from .chaos import LANES, SETTINGS, Plan, prove, send_all, shoot
    from .history import History
    from .runner import Runner

    ends_at, number = time.monotonic() + seconds, 0
    while not number or time.monotonic() < ends_at:
        plan = Plan(jobs=jobs, keys=KEYS, kills=KILLS, every=1.0, seconds=0.15, seed=seed + number)
        number += 1
        services.create_fifo_queue(LANES)
        services.purge(LANES)
        with tempfile.TemporaryDirectory() as folder:
            history = History(Path(folder) / "history.jsonl")
            send_all(plan)
            worker = Runner(Path(folder), "--processes", str(PROCESSES), settings=SETTINGS)
            began = time.monotonic()
            try:
                kills = shoot(plan, worker.ready(PROCESSES), history)
                prove(plan, history)
            except BaseException:
                sys.stderr.write(f"seed {plan.seed}\n{worker.log[-20_000:]}\n")
                raise
            finally:
                worker.close()
        took = time.monotonic() - began
        print(f"run {number}, seed {plan.seed}: {jobs:,} jobs, {kills} kills, {took:.0f} s, nothing lost, in order")


def memory_stays_flat(jobs: int) -> None:
    """Measured in every process of one worker, from after the warm-up to the end."""
    from django_jobqueue import services
    from django_jobqueue.models import Job
    from django_jobqueue.states import JobState

    from .runner import Runner

    services.create_queue("faults")
    services.purge("faults")
    sent = 0
    samples: list[tuple[float, dict[int, int]]] = []
    with tempfile.TemporaryDirectory() as folder:
        worker = Runner(Path(folder), settings={"POLL_SECONDS": 1.0}).ready()
        family = [worker.pid, *worker.children(), worker.housekeeper()]
        try:
            while sent < jobs:
                services.send_many("faults", [{"name": "noop"} for _ in range(min(AT_ONCE, jobs - sent))])
                sent += min(AT_ONCE, jobs - sent)
                while Job.objects.exclude(state=JobState.COMPLETED).exists():
                    time.sleep(0.05)
                samples.append((sent / jobs, {pid: resident_kilobytes(pid) for pid in family}))
                services.purge("faults")
            open_files = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in family}
            threads = {pid: len(os.listdir(f"/proc/{pid}/task")) for pid in family}
        finally:
            worker.close()
    warm = next(found for share, found in samples if share >= WARM_UP)
    last = samples[-1][1]
    for pid, role in zip(family, ("supervisor", "child", "housekeeper"), strict=True):
        growth = last[pid] / warm[pid] - 1
        print(
            f"{role}: {warm[pid]:,} kB after the warm-up, {last[pid]:,} kB after {jobs:,} jobs ({growth:+.1%}), "
            f"{open_files[pid]} files, {threads[pid]} threads"
        )
        assert growth < MOST_GROWTH, f"the {role} has grown by {growth:.1%}"


def resident_kilobytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    sys.exit(main())
