"""A write in a process of its own: ``writer.py ROWS [die]``, by Python or by spark-submit.

Told to die, it kills itself, Spark and all, when every row is staged and the commit begins.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django


def main(rows: str, die: str = "") -> None:
    django.setup()
    from pyspark.sql import functions as F

    from django_jobqueue.pipeline import datasource, spark_session, write_jobs
    from tests.pipeline.driver import SMALL

    if die:
        group = os.getpgid(0)  # the commit runs in a process that has a group of its own

        def dying(self: Any, messages: Any) -> None:
            os.killpg(group, signal.SIGKILL)

        datasource.JobWriter.commit = dying  # type: ignore[method-assign]
    config = SMALL if "PYSPARK_GATEWAY_PORT" not in os.environ else {}
    with spark_session(os.environ.get("MASTER"), config=config) as spark:
        frame = spark.range(int(rows), numPartitions=4).withColumn("key", (F.col("id") % 1_000).cast("string"))
        write_jobs(frame.withColumnRenamed("id", "n"), queue="work", key="key", order_by="n")
        print(spark.sparkContext.master)


if __name__ == "__main__":
    main(*sys.argv[1:])
