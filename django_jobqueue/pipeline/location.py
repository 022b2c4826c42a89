"""The path of the lake, and the checks that need no Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from ..conf import get_settings
from ..exceptions import InvalidOption, LakeProblem

# If one of these is set, a path without a scheme may not be local; then only Spark can check it.
_SETTINGS_OF_SPARK = (
    "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT",
)  # fmt: skip


def lake_path(path: str | None) -> str:
    """This path, or the one of the settings. Raises ``InvalidOption`` if there is none."""
    if path is not None and not path.strip():
        raise InvalidOption("lake", "the path is empty", hint="If it is a shell variable, check that it is set.")
    path = path or get_settings().LAKE
    if not path:
        raise InvalidOption("lake", "no path is configured", hint="Give --lake, or set JOBQUEUE['LAKE'].")
    return path.rstrip("/") or "/"


def check_folder(path: str, *, to_write: bool = False, holds_runs: bool = False) -> None:
    """Raise ``LakeProblem`` if the lake cannot be used, as far as that can be checked before Spark starts.

    ``to_write`` is for the archive, which may create the lake in a folder that exists. ``holds_runs`` is for readers:
    a folder that holds other files and no run of an archive is probably a mistyped path.
    """
    folder = _local_folder(path)
    if folder is None:
        return
    if os.path.isdir(folder):
        needed = folder
    elif not to_write:
        raise missing_lake(path)
    elif not os.path.isdir(folder.parent):
        raise missing_parent(path)
    else:
        needed = folder.parent
    if not os.access(needed, os.X_OK | (os.W_OK if to_write else os.R_OK)):
        verb = "write to" if to_write else "read"
        raise LakeProblem(f"This user may not {verb} {needed}.", hint="Allow it, or correct the path of the lake.")
    if holds_runs and not is_lake(os.listdir(folder)):
        raise other_folder(path)


def is_lake(names: Iterable[str]) -> bool:
    """Whether a folder with these names is a lake: it has runs, or it is new and empty, or the root of a disk."""
    visible = [name for name in names if name[0] not in "._" and name != "lost+found"]
    return not visible or any(name.startswith("run=") for name in visible)


def _local_folder(path: str) -> Path | None:
    if match := re.fullmatch(r"file:(?://)?(/.*)", path):
        return Path(match[1])
    if re.match(r"[A-Za-z][\w+.-]*:", path) or SparkSession.getActiveSession() is not None:
        return None
    return None if any(os.environ.get(name) for name in _SETTINGS_OF_SPARK) else Path(path)


def missing_lake(path: str) -> LakeProblem:
    return LakeProblem(
        f"There is no lake at {path}.", hint="Correct --lake or JOBQUEUE['LAKE']; jobs archive creates a lake."
    )


def other_folder(path: str) -> LakeProblem:
    return LakeProblem(
        f"{path} is not a lake: it holds other files, and no run of an archive.",
        hint="Correct --lake or JOBQUEUE['LAKE'].",
    )


def missing_parent(path: str) -> LakeProblem:
    return LakeProblem(
        f"The lake {path} cannot be created: there is no folder to create it in.",
        hint="Correct --lake or JOBQUEUE['LAKE'], or make the folder above it.",
    )
