"""Whether this machine can run Spark at all."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def why_not() -> str:
    """Why not, or nothing."""
    missing = [name for name in ("pyspark", "pyarrow", "adbc_driver_postgresql") if find_spec(name) is None]
    if missing:
        return f"the extra spark is not installed ({', '.join(missing)} missing)"
    from django_jobqueue.exceptions import SparkUnavailable
    from django_jobqueue.pipeline.session import check_java

    try:
        check_java()
    except SparkUnavailable as error:
        return str(error)
    return ""
