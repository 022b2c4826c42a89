"""A Spark session: the one that is there, or one of our own with settings that suit."""

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

LOCAL = "local[*,4]"  # plain local[*] never tries a task again
JAVA_AT_LEAST = 17
EXECUTOR_SECONDS = 60.0
SHUFFLED = 16  # parts of what is shuffled on one machine: Spark's own 200 is for a cluster

try:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
except ImportError as error:
    raise SparkUnavailable(
        f"This needs PySpark ({error}).", hint="Install it: pip install 'django-jobqueue[spark]'."
    ) from error

from .failures import explained  # noqa: E402  (it needs PySpark itself)


def given_or_started(spark: SparkSession | None, master: str | None) -> AbstractContextManager[SparkSession]:
    """The session of the caller, which is left as it is, or one of our own."""
    return spark_session(master) if spark is None else nullcontext(spark)


@contextmanager
def spark_session(master: str | None = None, *, config: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that works in UTC: a view on the one that is active, else a new one that is stopped at the end.

    A master given by ``spark-submit`` is never overridden; otherwise it is ``master``, or ``local[*,4]``. Raises
    ``SparkUnavailable`` without Java 17 or later, when Spark cannot start, or when a cluster gives no executor within a
    minute.
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
    """Make this session the active one: only there does a writer look for a format that was registered."""
    jvm: Any = spark._jvm
    SparkSession._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)


def _in_utc(spark: SparkSession) -> SparkSession:
    """A view with settings of its own: days of the lake are UTC, and times keep their microseconds."""
    view = spark.newSession()
    view.conf.set("spark.sql.session.timeZone", "UTC")
    view.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return view


def view_of(spark: SparkSession) -> SparkSession:
    """A view that reads Parquet as it is: the case of names counts, and what names of folders say stays text."""
    view = _in_utc(spark)
    view.conf.set("spark.sql.caseSensitive", "true")
    view.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    return view


def _started(master: str | None, config: dict[str, str]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.app.name": "django_jobqueue"}
    if not _was_submitted():
        check_java()
        # A command that ends soon needs no page of its own, and the progress is told by us.
        settings |= {"spark.master": master or LOCAL, "spark.driver.memory": "1g", "spark.ui.enabled": "false",
                     "spark.ui.showConsoleProgress": "false"}  # fmt: skip
    settings |= config
    if settings.get("spark.master", "").startswith("local"):
        settings.setdefault("spark.sql.shuffle.partitions", str(SHUFFLED))
        _start_behind_others(settings)
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if not _was_submitted():
        # On this machine Spark logs to our standard error, and a task that fails is told by the error that we raise.
        spark.sparkContext.setLogLevel("FATAL" if str(spark.sparkContext.master).startswith("local") else "ERROR")
    try:
        wait_for_executors(spark, EXECUTOR_SECONDS)
    except SparkUnavailable:
        spark.stop()
        raise
    return spark


def _start_behind_others(settings: dict[str, str]) -> None:
    """Start Spark's Java with a low priority: the past can wait, workers on the same machine cannot.

    On Linux a thread has a priority of its own, and what it starts inherits that; this process keeps its own.
    """
    if sys.platform != "linux" or SparkContext._gateway is not None:
        return
    niceness = get_settings().SPARK_NICENESS

    def start() -> None:
        thread = threading.get_native_id()
        with suppress(OSError):  # where that is not allowed, Spark is worth more than its place behind others
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))

    with ThreadPoolExecutor(1) as starter:
        starter.submit(start).result()


def _was_submitted() -> bool:
    """Whether ``spark-submit`` started this process, and so has said where to run."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def wait_for_executors(spark: SparkSession, seconds: float) -> None:
    """Raise ``SparkUnavailable`` if the cluster gives no executor: Spark itself would wait for ever."""
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return
    deadline = time.monotonic() + seconds
    while not _executors(context):
        if time.monotonic() > deadline:
            raise SparkUnavailable(
                f"{context.master} gave no executor within {seconds:g} seconds.",
                hint="Are its workers alive, and large enough for spark.executor.memory and spark.executor.cores?",
            )
        time.sleep(0.2)


def _executors(context: Any) -> int:
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them


def check_java() -> None:
    """Raise ``SparkUnavailable`` unless there is a Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "Install a JDK or JRE, for example openjdk-17-jre-headless, or set JAVA_HOME to one."
    if java is None or not Path(java).exists():
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise SparkUnavailable(f"Spark needs Java {JAVA_AT_LEAST} or later, and there is none {where}.", hint=hint)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if found is None or int(found[1]) < JAVA_AT_LEAST:
        version = found[1] if found else "that does not say its version"
        raise SparkUnavailable(f"Spark needs Java {JAVA_AT_LEAST} or later; {java} is Java {version}.", hint=hint)
