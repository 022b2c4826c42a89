"""The Spark session: the active one, or a new one with suitable settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ..conf import get_settings
from ..exceptions import SparkUnavailable

LOCAL = "local[*,4]"  # local[*] alone does not retry a failed task
JAVA_AT_LEAST = 17
EXECUTOR_SECONDS = 60.0
SHUFFLED = 16  # partitions of a shuffle on one machine; Spark's default of 200 is for a cluster

try:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
except ImportError as error:
    raise SparkUnavailable(
        f"This needs PySpark ({error}).", hint="Install it: pip install 'django-jobqueue[spark]'."
    ) from error

from .failures import explained  # noqa: E402  (it imports PySpark)


def given_or_started(spark: SparkSession | None, master: str | None) -> AbstractContextManager[SparkSession]:
    """The session of the caller, which is not stopped, or :func:`spark_session`."""
    return spark_session(master) if spark is None else nullcontext(spark)


@contextmanager
def spark_session(master: str | None = None, *, config: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that uses UTC: a view of the active session, or a new session that is stopped at the end.

    The master is the one of ``spark-submit``, or else ``master``, or else ``local[*,4]``. Raises ``SparkUnavailable``
    without Java 17 or later, if Spark cannot start, or if a cluster provides no executor within a minute.
    """
    active = SparkSession.getActiveSession()
    if active is None:
        with explained("the start"):
            spark = _started(master, config or {})
    else:
        spark = active
    try:
        view = _in_utc(spark)
        activate(view)
        yield view
    finally:
        if active is None:
            spark.stop()
        else:
            activate(active)


def activate(spark: SparkSession) -> None:
    """Make this session the active one: a writer looks for a registered format only there."""
    jvm: Any = spark._jvm
    SparkSession._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def _in_utc(spark: SparkSession) -> SparkSession:
    """A view of a session, with its own settings: days of the lake are UTC, and times keep their microseconds."""
    view = spark.newSession()
    view.conf.set("spark.sql.session.timeZone", "UTC")
    view.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return view


def view_of(spark: SparkSession) -> SparkSession:
    """A view that reads Parquet unchanged: names are case-sensitive, and values in names of folders stay text."""
    view = _in_utc(spark)
    view.conf.set("spark.sql.caseSensitive", "true")
    view.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    return view


def _started(master: str | None, config: dict[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": "django_jobqueue"}
    if not _was_submitted():
        check_java()
        # A short command needs no web page of Spark, and prints its own progress.
        settings |= {"spark.master": master or LOCAL, "spark.driver.memory": "1g", "spark.ui.enabled": "false",
                     "spark.ui.showConsoleProgress": "false"}  # fmt: skip
    settings |= config
    if settings.get("spark.master", "").startswith("local"):
        settings.setdefault("spark.sql.shuffle.partitions", str(SHUFFLED))
        _start_with_low_priority(settings)
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if not _was_submitted():
        # With a local master, Spark logs to standard error of this process; the raised error names the failed task.
        spark.sparkContext.setLogLevel("FATAL" if str(spark.sparkContext.master).startswith("local") else "ERROR")
    try:
        wait_for_executors(spark, EXECUTOR_SECONDS)
    except SparkUnavailable:
        spark.stop()
        raise
    return spark


def _start_with_low_priority(settings: dict[str, str]) -> None:
    """Start Spark's Java with a low priority: workers on the same machine are more urgent.

    On Linux each thread has its own priority, which the processes that it starts inherit; this process keeps its own.
    """
    if sys.platform != "linux" or SparkContext._gateway is not None:
        return
    niceness = get_settings().SPARK_NICENESS

    def start() -> None:
        thread = threading.get_native_id()
        with suppress(OSError):  # where it is not allowed, Spark starts with a normal priority
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))

    with ThreadPoolExecutor(1) as starter:
        starter.submit(start).result()


def _was_submitted() -> bool:
    """Whether ``spark-submit`` started this process, and so chose the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def wait_for_executors(spark: SparkSession, seconds: float) -> None:
    """Raise ``SparkUnavailable`` if the cluster provides no executor: Spark itself would wait for ever."""
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return
    deadline = time.monotonic() + seconds
    while not _executors(context):
        if time.monotonic() > deadline:
            raise SparkUnavailable(
                f"{context.master} provided no executor within {seconds:g} seconds.",
                hint="Check that its workers run and have spark.executor.memory and spark.executor.cores to spare.",
            )
        time.sleep(0.2)


def _executors(context: Any) -> int:
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # without the driver


def check_java() -> None:
    """Raise ``SparkUnavailable`` unless there is a Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "Install a JDK or JRE, for example openjdk-17-jre-headless, or set JAVA_HOME to one."
    if java is None or not Path(java).exists():
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise SparkUnavailable(f"Spark needs Java {JAVA_AT_LEAST} or later, and there is none {where}.", hint=hint)
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', printed.stderr + printed.stdout)
    if match is None or int(match[1]) < JAVA_AT_LEAST:
        version = match[1] if match else "of an unknown version"
        raise SparkUnavailable(f"Spark needs Java {JAVA_AT_LEAST} or later; {java} is Java {version}.", hint=hint)
