"""Where the lake is, and what can be known of it before Spark has started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from ..conf import get_settings
from ..exceptions import InvalidOption, LakeProblem

# Each of these may say that a path without a scheme is not a local one: then only Spark knows.
_SETTINGS_OF_SPARK = (
    "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT",
)  # fmt: skip


def lake_path(given: str | None) -> str:
    """Where the lake is: as given, or as the settings say. Raises ``InvalidOption``."""
    if given is not None and not given.strip():
        raise InvalidOption("lake", "the path is empty", hint="Is a variable of the shell not set?")
    path = given or get_settings().LAKE
    if not path:
        raise InvalidOption("lake", "no path is configured", hint="Give --lake, or set JOBQUEUE['LAKE'].")
    return path.rstrip("/") or "/"


def check_folder(path: str, *, to_write: bool = False, holds_runs: bool = False) -> None:
    """Raise ``LakeProblem`` for a lake that cannot be used, as far as that can be known before Spark starts.

    ``to_write`` is for the archive: it may create the lake, in a folder that exists. ``holds_runs`` is for those that
    read: a folder with other things in it and no run of an archive is another one than was meant.
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
    """Whether these names are those in a lake. One that is new is empty, or the root of a disk."""
    visible = [name for name in names if name[0] not in "._" and name != "lost+found"]
    return not visible or any(name.startswith("run=") for name in visible)


def _local_folder(path: str) -> Path | None:
    if found := re.fullmatch(r"file:(?://)?(/.*)", path):
        return Path(found[1])
    if re.match(r"[A-Za-z][\w+.-]*:", path) or SparkSession.getActiveSession() is not None:
        return None
    return None if any(os.environ.get(name) for name in _SETTINGS_OF_SPARK) else Path(path)


def missing_lake(path: str) -> LakeProblem:
    return LakeProblem(
        f"There is no lake at {path}.", hint="Correct --lake or JOBQUEUE['LAKE']; jobs archive creates a lake."
    )


def other_folder(path: str) -> LakeProblem:
    return LakeProblem(
        f"{path} is no lake: it holds other files, and no run of an archive.",
        hint="Correct --lake or JOBQUEUE['LAKE'].",
    )


def missing_parent(path: str) -> LakeProblem:
    return LakeProblem(
        f"The lake {path} cannot be created: there is no folder to create it in.",
        hint="Correct --lake or JOBQUEUE['LAKE'], or make the folder above it.",
    )
