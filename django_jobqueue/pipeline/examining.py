"""Checks of ``jobs doctor --lake``: Spark starts, and a small file is written to the lake."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

from pyspark.sql import SparkSession

from ..doctor.findings import Finding, Level, counted
from ..exceptions import LakeProblem, SparkUnavailable
from .failures import explained
from .lake import DONE, WITH_FOLDERS, Lake, jobs_in
from .location import check_folder, lake_path, missing_lake
from .session import given_or_started
from .syncing import sync

SYNC_ON_CLOSE = "dfs.datanode.synconclose"
LISTED = 10


def examine_lake(
    *, path: str | None = None, spark: SparkSession | None = None, master: str | None = None
) -> list[Finding]:
    """Write, rename, read back and delete a file in the lake, list its runs, and return the findings.

    Raises ``InvalidOption`` if no lake is configured.
    """
    place = lake_path(path)
    try:
        check_folder(place)
        with explained(f"the lake {place}"), given_or_started(spark, master) as session:
            return list(_examined(Lake(session, place)))
    except (LakeProblem, SparkUnavailable) as error:
        return [_unusable(place, error.message, error.hint)]


def _unusable(path: str, message: str, hint: str) -> Finding:
    return Finding(
        "lake_unusable",
        Level.ERROR,
        "The lake cannot be used",
        message,
        hint or "Run the command again with --traceback, and check the lake and Spark.",
        {"lake": path},
    )


def _examined(lake: Lake) -> Iterator[Finding]:
    if lake.scheme in WITH_FOLDERS and not lake.exists():
        raise missing_lake(lake.path)
    _check_file(lake)
    if lake.scheme == "hdfs":
        yield from _sync_on_close(lake)
    if lake.exists():
        yield from _runs(lake)


def _check_file(lake: Lake) -> None:
    """Its name begins with an underscore, so readers skip it while it exists."""
    draft, final = f"_doctor-{uuid4().hex}", f"_doctor-{uuid4().hex}"
    try:
        lake.write(draft, draft.encode())
        if lake.here is not None:
            sync(lake.here / draft)
        if not lake.fs.rename(lake.at(draft), lake.at(final)):
            raise LakeProblem(
                f"A file in {lake.path} could not be renamed.", hint="Allow this user to rename files there."
            )
        if lake.text(final) != draft:
            raise LakeProblem(f"A file in {lake.path} was read back with other content.", hint="Check the disk.")
    finally:
        for name in (draft, final):
            lake.fs.delete(lake.at(name), False)


def _sync_on_close(lake: Lake) -> Iterator[Finding]:
    if not lake.hadoop.getBoolean(SYNC_ON_CLOSE, False):
        yield Finding(
            "lake_not_synced",
            Level.WARNING,
            "A power loss may destroy newly archived jobs on HDFS",
            f"{SYNC_ON_CLOSE} is not true in Spark's configuration: a datanode may keep new files only in memory.",
            f"Set {SYNC_ON_CLOSE} to true in hdfs-site.xml of the datanodes and of Spark, and restart the datanodes.",
            {"lake": lake.path},
        )


def _runs(lake: Lake) -> Iterator[Finding]:
    runs, verified = lake.runs(), lake.verified()
    yield Finding(
        "lake_runs",
        Level.NOTICE,
        f"The lake holds {counted(len(verified), 'verified run')} with {counted(jobs_in(verified), 'job')}",
        f"The newest is {max(verified, default='none')}. A file was written, renamed, read back and deleted.",
        "Nothing to do.",
        {"lake": lake.path, "runs": len(verified), "jobs": jobs_in(verified)},
    )
    if unfinished := [run for run in runs if not lake.has(run, DONE)]:
        listed = ", ".join(
            f"{run} ({'verified' if run in verified else 'not verified'})" for run in unfinished[:LISTED]
        )
        yield Finding(
            "lake_unfinished",
            Level.NOTICE,
            f"The lake holds {counted(len(unfinished), 'unfinished run')}",
            f"An archive is running, or was stopped: {listed}.",
            "Run manage.py jobs archive: it deletes the jobs of verified runs, and removes runs that are not verified.",
            {"lake": lake.path, "runs": unfinished},
        )
