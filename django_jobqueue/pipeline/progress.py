"""Progress of long operations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """The current stage, and how much of it is done: Spark tasks, jobs or tables."""

    stage: str
    done: int = 0
    total: int = 0
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.stage}: {self.done:,} of {self.total:,} {self.unit}" if self.total else self.stage


Tell = Callable[[Progress], None]


def tell_nobody(_: Progress) -> None:
    pass


@contextmanager
def watched(spark: SparkSession, stage: str, tell: Tell) -> Iterator[None]:
    """Report how many of Spark's tasks are done, while Spark runs inside this context."""
    tell(Progress(stage))
    over = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(EVERY_SECONDS):
            with suppress(Exception):  # a stage may end while its tasks are counted
                done, total = _tasks(tracker)
                if total:
                    tell(Progress(stage, done, total, "tasks"))

    thread = threading.Thread(target=watch, name=f"progress of {stage}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tasks(tracker: Any) -> tuple[int, int]:
    stages = [info for id in tracker.getActiveStageIds() if (info := tracker.getStageInfo(id))]
    return sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
