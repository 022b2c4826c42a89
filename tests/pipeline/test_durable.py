"""A run is on disk before anything is deleted: what the kernel was told, and what happens when the disk refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from django_jobqueue.exceptions import LakeProblem
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago

from .processes import run

TRACED = "fsync,fdatasync,rename,renameat,renameat2,sendto"
CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<rest>.*)$")


def finished(number: int = 3, **columns: object) -> list[Job]:
    queue = QueueFactory()
    return [
        JobFactory(queue=queue, state=JobState.COMPLETED, finalized_at=ago(days=8), **columns) for _ in range(number)
    ]


def archive(spark, lake, **options):
    from django_jobqueue.pipeline import archive_jobs

    return archive_jobs(spark=spark, lake=lake, older_than=0, **options)


def marks(lake: str) -> set[str]:
    return {path.name for path in Path(lake).glob("run=*/_[A-Z]*")} - {"_SUCCESS"}


def stop_at(stage: str):
    def tell(progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    return tell


class Trace:
    """The system calls of a command and all its processes, in their order."""

    def __init__(self, path: Path) -> None:
        calls = [match for line in path.read_text(errors="replace").splitlines() if (match := CALL.match(line))]
        self.calls = [(match["name"], match["rest"]) for match in calls]
        assert not [rest for name, rest in self.calls if name == "fsync" and "= -1" in rest]

    def first(self, name: str, text: str) -> int:
        return next(place for place, (call, rest) in enumerate(self.calls) if call.startswith(name) and text in rest)

    def synced(self, path: Path) -> list[int]:
        return [place for place, (call, rest) in enumerate(self.calls) if call == "fsync" and f"<{path}>" in rest]


def strace(out: Path) -> list[str] | str:
    """The command, or why not: where there is none, or where a container does not allow it."""
    if shutil.which("strace") is None:
        return "no strace here: apt-get install strace"
    command = ["strace", "-f", "-y", "--seccomp-bpf", "-s", "4000", "-e", f"trace={TRACED}", "-o", str(out)]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"strace is not allowed here: {tried.stderr.strip()}"
    return command


def test_every_file_and_folder_of_a_run_is_synced_before_the_first_delete(spark, lake, tmp_path):  # F91
    """The command is also looked at: its answer alone is on the standard output, how far it is on the other."""
    finished(2)
    finished(2)
    tracing = strace(tmp_path / "trace")

    said = run("archive", "--lake", lake, "--rest=0", before=tracing if isinstance(tracing, list) else (),
               PGSSLMODE="disable")  # fmt: skip

    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[0].split() == ["archived", "4", "jobs"]
    assert "writing" in said.stderr
    assert "deleting: " in said.stderr
    assert " of 4 jobs" in said.stderr
    assert not Job.objects.exists()
    if isinstance(tracing, str):
        pytest.skip(tracing)
    trace, (folder,) = Trace(tmp_path / "trace"), Path(lake).glob("run=*")
    deleted = trace.first("sendto", "WITH archived AS MATERIALIZED")
    named = trace.first("rename", f'{folder}/_VERIFIED"')
    files = {path for path in folder.rglob("*") if path.is_file() and "_DONE" not in path.name}
    data = {path for path in files if ".parquet" in path.name}
    folders = {path for path in folder.rglob("*") if path.is_dir()} | {folder, folder.parent, folder.parent.parent}
    assert len({path for path in data if path.suffix == ".parquet"}) >= 2
    assert len({path for path in data if path.suffix == ".crc"}) >= 2
    late = {path for path in files | folders if not [place for place in trace.synced(path) if place < deleted]}
    assert late == set()
    before_the_mark = data | folders | {folder / "_draft_VERIFIED", folder / "._draft_VERIFIED.crc"}
    assert {path for path in before_the_mark if not [place for place in trace.synced(path) if place < named]} == set()
    assert [place for place in trace.synced(folder) if named < place < deleted], "the name of the mark"
    assert [place for place in trace.synced(folder / "_DONE") if place > deleted]


def test_nothing_is_deleted_when_a_file_cannot_be_synced(spark, lake):
    """A device that cannot be synced stands among the files; Spark passes over its name."""
    finished()

    def damage(progress) -> None:
        if progress.stage == "written":
            (folder,) = Path(lake).glob("run=*")
            (folder / "_device").symlink_to("/dev/full")

    with pytest.raises(LakeProblem, match=r"_device could not be synced to disk: Invalid argument") as raised:
        archive(spark, lake, tell=damage)

    assert raised.value.hint.startswith("Nothing of this run was deleted from PostgreSQL.")
    assert Job.objects.count() == 3
    assert marks(lake) == {"_STARTED"}


def test_a_run_that_another_process_verified_is_synced_before_its_jobs_are_deleted(spark, lake):
    """An older version did not sync it."""
    finished()
    with pytest.raises(KeyboardInterrupt):
        archive(spark, lake, tell=stop_at("verified"))
    assert marks(lake) == {"_STARTED", "_VERIFIED"}
    (folder,) = Path(lake).glob("run=*")
    (folder / "_device").symlink_to("/dev/full")

    with pytest.raises(LakeProblem, match="could not be synced"):
        archive(spark, lake)

    assert Job.objects.count() == 3
    (folder / "_device").unlink()
    assert archive(spark, lake).deleted == 3


def test_a_run_that_lost_a_file_after_it_was_verified_deletes_nothing(spark, lake):
    finished(1)
    finished(1)
    with pytest.raises(KeyboardInterrupt):
        archive(spark, lake, tell=stop_at("verified"))
    next(Path(lake).rglob("*.parquet")).unlink()

    with pytest.raises(LakeProblem, match="differs from what was written"):
        archive(spark, lake)

    assert Job.objects.count() == 2


def test_a_mark_that_is_damaged_is_named(spark, lake):
    finished(1)
    done = archive(spark, lake)
    mark = Path(lake, f"run={done.run}", "_VERIFIED")
    mark.with_name("._VERIFIED.crc").unlink()
    mark.write_text("")

    with pytest.raises(LakeProblem, match=rf"run={done.run}/_VERIFIED is damaged"):
        archive(spark, lake)


def test_a_file_system_that_cannot_sync_folders_is_used_all_the_same():
    from django_jobqueue.pipeline.syncing import sync

    sync(Path("/proc"))
    with pytest.raises(OSError, match=r"\[Errno 22\] Invalid argument: '/dev/full'"):
        sync(Path("/dev/full"))
