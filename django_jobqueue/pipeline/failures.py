"""Errors of Java, Spark and file systems as errors of this package; no other module reads their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from ..exceptions import LakeProblem, SparkUnavailable

# The package that provides a file system, by its scheme or by the name of its Java package in Hadoop.
PACKAGES = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "azurebfs": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}
_NO_SCHEME = re.compile(r'No FileSystem for scheme "?([\w+.-]+)')
_NO_CLASS = re.compile(r"Class (org\.apache\.hadoop\.fs\.(\w+)\.\S+) not found")
_OF_THE_DATABASE = re.compile(r"^(?:psycopg|adbc_driver_manager)\S*Error: (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: |: )?((?:\w+\.)+\w*(?:Exception|Error))(?:: (.*))?$", re.MULTILINE)

# Patterns of known problems, and what to do about them; the first that matches the text of the error counts.
_KNOWN = (
    (
        re.compile(r"No space left on device|Disk quota exceeded|File too large|DSQuotaExceeded\w*"),
        "Free some space there and in Spark's temporary folder (spark.local.dir), then run the command again.",
    ),
    (
        re.compile(
            r"Permission denied|Operation not permitted|AccessControlException|AccessDenied\w*|Read-only file system"
            r"|No such file or directory|Not a directory|Is a directory|File exists|Mkdirs failed to create"
            r"|ParentNotDirectory\w*|FileAlreadyExists\w*"
        ),
        "Correct the path, or allow this user to read and write there.",
    ),
    (
        re.compile(r"UnknownHost\w*|Connection refused|No route to host|Connect(?:ion)? timed? ?out\w*|NoAuthWith\w*"),
        "Check the address, the network and the credentials that Spark was given.",
    ),
)  # fmt: skip


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise ``LakeProblem`` or ``SparkUnavailable`` with one sentence about ``what`` instead of an error of Java.

    If Spark's processes could not use the database, raises Django's ``OperationalError``, as this process would.
    """
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        raise explain(error, what) from error


def explain(error: Exception, what: str) -> LakeProblem | SparkUnavailable | OperationalError:
    """The error to raise instead: one sentence, and what to do about it."""
    if isinstance(error, Py4JNetworkError):
        return SparkUnavailable(
            "Spark's Java process has ended.",
            hint="It may have been killed, or was short of memory; run the command again.",
        )
    text = _text(error)
    if "JAVA_GATEWAY_EXITED" in text:
        return SparkUnavailable(
            "Spark's Java process ended while it started.",
            hint="Java has printed the reason above. Check --master and the settings of Spark.",
        )
    if match := _OF_THE_DATABASE.search(text):
        return OperationalError(f"Spark could not use the database: {match[1]}")
    if (missing := _missing_file_system(text)) is not None:
        return LakeProblem(f"{_start(what)} cannot be used: {missing[0]}.", hint=missing[1])
    reason = _reason(error, text)
    for pattern, hint in _KNOWN:
        if known := pattern.search(text):
            shown = reason if known[0] in reason else f"{known[0]}: {reason}"
            return LakeProblem(f"{_start(what)} cannot be used: {shown}.", hint=hint)
    if isinstance(error, OSError):
        return LakeProblem(f"{_start(what)} cannot be used: {reason}.", hint="Check the path and the disk.")
    return SparkUnavailable(f"Spark failed at {what}: {reason}.", hint="--traceback shows the whole error.")


def _missing_file_system(text: str) -> tuple[str, str] | None:
    """Which jar Spark lacks for a file system, and how to provide it; ``None`` if the error is another one."""
    if match := _NO_CLASS.search(text):
        name = match[2]
        package = "org.apache.hadoop:hadoop-gcp" if name == "gs" else PACKAGES.get(name)
        missing = f"Spark has no jar with the class {match[1]}"
    elif match := _NO_SCHEME.search(text):
        package = PACKAGES.get(match[1])
        missing = f"Spark knows no file system {match[1]}://"
    else:
        return None
    if package is None:
        return missing, "Correct the path (S3 is s3a://), or give Spark the jar of that file system."
    if package.startswith("org.apache.hadoop:"):
        package = f"{package}:{_hadoop_version()}"
    return missing, f"Set PYSPARK_SUBMIT_ARGS='--packages {package} pyspark-shell', or give Spark its jar another way."


def _hadoop_version() -> str:
    jvm = SparkContext._jvm
    return "VERSION" if jvm is None else str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())


def _text(error: Exception) -> str:
    """The whole text of an error, with the causes that Java lists below the stack."""
    return f"{error}\n{getattr(error, '_stackTrace', None) or ''}"


def _reason(error: Exception, text: str) -> str:
    """The innermost cause in one line."""
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else error.strerror or str(error)
    causes = _CAUSE.findall(text)
    if not causes:
        return _line(text)
    inner = [cause for cause in causes if f"Caused by: {cause[0]}" in text]
    name, message = inner[-1] if inner else causes[0]
    return _line(message) or str(name).rsplit(".", 1)[-1]


def _line(text: str) -> str:
    return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), "")


def _start(what: str) -> str:
    return f"{what[:1].upper()}{what[1:]}"
