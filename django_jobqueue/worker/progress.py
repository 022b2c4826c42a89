"""The progress bar of ``runjobs --drain``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from django.db import DatabaseError

from ..models import Job
from .options import WorkerOptions

_WIDTH = 30
_EVERY_SECONDS = 0.2


class Progress:
    """A progress bar, drawn only on a terminal."""

    def __init__(self, options: WorkerOptions) -> None:
        self._shown_at = 0.0
        self._began = time.monotonic()
        self.is_shown = sys.stderr.isatty()
        self.total = self._count(options) if self.is_shown else 0

    def _count(self, options: WorkerOptions) -> int:
        jobs = Job.objects.using(options.using).eligible()
        try:
            return jobs.filter(queue__in=options.queues).count() if options.queues else jobs.count()
        except DatabaseError:  # the bar then shows no total
            return 0

    def show(self, children: Iterable[tuple[int, int, int]]) -> None:
        if not self.is_shown or time.monotonic() - self._shown_at < _EVERY_SECONDS:
            return
        self._shown_at = time.monotonic()
        done = sum(done for done, _, _ in children)
        failed = sum(failed for _, failed, _ in children)
        share = min(1.0, (done + failed) / max(1, self.total))
        rate = (done + failed) / max(0.001, time.monotonic() - self._began)
        bar = "#" * int(share * _WIDTH)
        text = f"\r[{bar:<{_WIDTH}}] {done + failed:,} of {self.total:,}, {failed:,} failed, {rate:,.0f}/s "
        sys.stderr.write(text)
        sys.stderr.flush()

    def close(self) -> None:
        if self.is_shown:
            sys.stderr.write("\n")
