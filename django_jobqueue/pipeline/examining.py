"""What the doctor finds when it is asked to look at the lake: Spark starts, and a small file is written there."""

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
    """Write, read back, rename and delete a file in the lake, list its runs, and return what is wrong or worth knowing.

    Raises ``InvalidOption`` if no lake is configured.
    """
    place = lake_path(path)
    try:
        check_folder(place)
        with explained(f"the lake {place}"), given_or_started(spark, master) as own:
            return list(_examined(Lake(own, place)))
    except (LakeProblem, SparkUnavailable) as error:
        return [_unusable(place, error.message, error.hint)]


def _unusable(path: str, message: str, hint: str) -> Finding:
    return Finding(
        "lake_unusable",
        Level.ERROR,
        "The lake cannot be used",
        message,
        hint or "Run the command again with --traceback, and look at the lake and at Spark.",
        {"lake": path},
    )


def _examined(lake: Lake) -> Iterator[Finding]:
    if lake.scheme in WITH_FOLDERS and not lake.exists():
        raise missing_lake(lake.path)
    _try_a_file(lake)
    if lake.scheme == "hdfs":
        yield from _sync_on_close(lake)
    if lake.exists():
        yield from _runs(lake)


def _try_a_file(lake: Lake) -> None:
    """Its name begins with an underscore, so readers pass over it while it is there."""
    draft, final = f"_doctor-{uuid4().hex}", f"_doctor-{uuid4().hex}"
    try:
        lake.write(draft, draft.encode())
        if lake.here is not None:
            sync(lake.here / draft)
        if not lake.fs.rename(lake.at(draft), lake.at(final)):
            raise LakeProblem(f"A file in {lake.path} could not be renamed.", hint="Allow it to this user.")
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
            "HDFS may lose what was just archived when the power fails",
            f"{SYNC_ON_CLOSE} is not true in Spark's configuration: a datanode may keep new files in memory alone.",
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
        told = ", ".join(f"{run} ({'verified' if run in verified else 'not verified'})" for run in unfinished[:LISTED])
        yield Finding(
            "lake_unfinished",
            Level.NOTICE,
            f"{counted(len(unfinished), 'run')} of the lake did not end",
            f"An archive is running, or was stopped: {told}.",
            "manage.py jobs archive: it deletes what a verified run holds, and removes runs that are not verified.",
            {"lake": lake.path, "runs": unfinished},
        )
