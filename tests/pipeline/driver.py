"""An archive in a process of its own, which kills itself, Spark and all, at a given step.

``python -m tests.pipeline.driver LAKE [STEP] [MASTER]``; what it did goes to the standard output as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import django

SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}
STEPS = ("writing", "written", "verified", "deleting")


def die() -> None:
    """At once, with every process of the group: Spark's too."""
    os.killpg(0, signal.SIGKILL)


def die_while_files_are_written(lake: str) -> None:
    def watch() -> None:
        while not any(Path(lake).glob("run=*/_temporary/**/*.parquet")):
            time.sleep(0.001)
        die()

    threading.Thread(target=watch, daemon=True).start()


def main(lake: str, step: str = "", master: str = "local[2,4]") -> None:
    django.setup()
    from django_jobqueue.pipeline import archive_jobs, spark_session

    def tell(progress: Any) -> None:
        if progress.stage == step and step != "writing":
            die()

    if step == "writing":
        die_while_files_are_written(lake)
    with spark_session(master, config=SMALL) as spark:
        done = archive_jobs(spark=spark, lake=lake, older_than=0, rest=0, tell=tell)
        executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(json.dumps(asdict(done) | {"executors": executors}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
