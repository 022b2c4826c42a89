"""A loop of ``fetch()`` and ``complete()``, as an application without handlers would write it.

``python -m tests.benchmarks.fetch_loop`` until it is ended. A job whose data says ``seconds`` is completed after that
time; meanwhile the loop goes on.
"""

from __future__ import annotations

import time

import django

django.setup()

from django_jobqueue import services  # noqa: E402
from django_jobqueue.models import Job  # noqa: E402
from tests.benchmarks.jobs import ORDERED  # noqa: E402
from tests.benchmarks.marks import mark  # noqa: E402

LIMIT = 10
WAIT = 0.1


def main() -> None:
    slow: list[tuple[float, Job]] = []
    while True:
        for job in services.fetch(ORDERED, LIMIT, wait=WAIT):
            if seconds := job.data.get("seconds"):
                slow.append((time.monotonic() + seconds, job))
            else:
                _complete(job)
        for due in [one for one in slow if one[0] < time.monotonic()]:
            slow.remove(due)
            _complete(due[1])


def _complete(job: Job) -> None:
    services.complete(job)
    mark(job.data["n"])


if __name__ == "__main__":
    main()
