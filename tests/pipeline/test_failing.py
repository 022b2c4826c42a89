"""What operators meet: each failure of a command is one sentence and an exit code that is not 1."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pytest
from django.db import OperationalError, connection

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job
from django_jobqueue.states import JobState
from tests.commands.calling import jobs
from tests.factories import JobFactory, QueueFactory
from tests.faults.runner import ROOT
from tests.past import ago

from .processes import PATIENCE, environment, run, run_each, without_java

READERS = ("audit", "analyze", "restore")
NOWHERE = "host=127.0.0.1 port=1 user=absent dbname=none"


def command(name: str, *more: str, folder: Path) -> list[str]:
    needed = {"restore": ["--since", "2020-01-01"], "analyze": ["--report", str(folder / "jobs.html")]}
    return [name, *needed.get(name, []), *more]


@pytest.fixture
def old() -> Job:
    """A job that an archive takes."""
    return JobFactory(queue=QueueFactory(), state=JobState.COMPLETED, finalized_at=ago(days=8))


# --------------------------------------------------------------------------------------------------- a mistyped path


@pytest.mark.parametrize("name", READERS)
def test_a_lake_that_does_not_exist_is_an_error(name, spark, lake, tmp_path):
    said = jobs(*command(name, "--lake", lake, folder=tmp_path))
    (tmp_path / "file").touch()
    file = jobs(*command(name, "--lake", str(tmp_path / "file"), folder=tmp_path))

    assert (said.code, said.out) == (5, "")
    assert said.error == (
        f"There is no lake at {lake}. Correct --lake or JOBQUEUE['LAKE']; jobs archive creates a lake."
    )
    assert (file.code, file.error.split(".")[0]) == (5, f"There is no lake at {tmp_path / 'file'}")


def test_a_local_path_is_looked_at_before_spark_starts(transactional_db, tmp_path):  # F92
    missing, unusable, other = str(tmp_path / "not" / "there"), "file:///dev/null/lake", str(tmp_path)
    (tmp_path / "orders.csv").touch()
    places = {missing: (*READERS, "archive"), unusable: (*READERS, "archive"), other: READERS}
    calls = [command(name, "--lake", path, folder=tmp_path) for path, names in places.items() for name in names]
    calls.append(["archive", "--dry-run", "--lake", missing])

    *said, dry_run = run_each(calls, **without_java())

    for one in said:
        assert (one.returncode, len(one.stderr.splitlines())) == (5, 1), one
        assert one.args[-1] in one.stderr
    assert f"{other} is not a lake: it holds other files, and no run of an archive." in said[-1].stderr
    assert (dry_run.returncode, "no folder to create it in" in dry_run.stderr) == (5, True)
    assert not Path(missing).parent.exists()


def test_a_folder_of_other_things_is_no_lake_also_if_only_spark_sees_it(spark, tmp_path):
    from django_jobqueue.exceptions import LakeProblem
    from django_jobqueue.pipeline import read_lake

    (tmp_path / "lost+found").mkdir()
    (tmp_path / "_notes").touch()
    assert read_lake(spark, str(tmp_path)).count() == 0, "it may be a new one"
    (tmp_path / "orders").mkdir()
    with pytest.raises(LakeProblem, match="is not a lake: it holds other files"):
        read_lake(spark, str(tmp_path))
    assert jobs("restore", "--since", "2020-01-01", "--lake", str(tmp_path)).code == 5


def test_the_database_is_asked_before_spark_starts(transactional_db, tmp_path):
    lake = tmp_path / "lake"
    lake.mkdir()
    calls = [command(name, "--lake", str(lake), folder=tmp_path) for name in (*READERS, "archive")]
    calls.append(["bulk_send", str(tmp_path / "none.csv"), "--queue", "work"])

    for said in run_each(calls, JOBQUEUE_TEST_DSN=NOWHERE, **without_java()):
        assert (said.returncode, len(said.stderr.splitlines())) == (4, 1), said


def test_an_archive_creates_the_lake_but_not_the_folders_above_it(spark, lake, old):
    refused = jobs("archive", "--lake", f"{lake}/deeper")
    tried = jobs("archive", "--lake", f"{lake}/deeper", "--dry-run", "--database", "default")
    done = jobs("archive", "--lake", lake, "--json")

    assert (refused.code, tried.code) == (5, 0), "with a session there, only Spark knows what a path is"
    assert "there is no folder to create it in" in refused.error
    assert not Path(lake, "deeper").exists()
    assert (done.code, done.json["written"]) == (0, 1)


def test_a_mistyped_queue_is_an_error_unless_the_lake_knows_it(spark, lake, tmp_path):
    queue = services.create_fifo_queue("orders")
    JobFactory(queue=queue, singleton_key="a", state=JobState.COMPLETED, finalized_at=ago(days=8))
    jobs("archive", "--lake", lake)
    services.delete_queue("orders")

    for name in ("audit", "analyze"):
        wrong = jobs(*command(name, "--lake", lake, "--queue", "ordres", folder=tmp_path))
        live = jobs(*command(name, "--live-only", "--queue", "orders", folder=tmp_path))
        right = jobs(*command(name, "--lake", lake, "--queue", "orders", "--json", folder=tmp_path))
        assert (wrong.code, live.code, right.code, right.json["jobs"]) == (3, 3, 0, 1)
    QueueFactory(name="replay")
    assert jobs("restore", "--lake", lake, "--queue", "ordres", "--to", "replay").code == 3
    assert jobs("restore", "--lake", lake, "--queue", "orders", "--to", "replay").code == 0


# ----------------------------------------------------------------------------------------------------- live and lake


def test_the_live_table_alone_is_read_when_that_is_asked_for(spark, settings, lake, tmp_path):
    from django_jobqueue.pipeline import audit_order

    settings.JOBQUEUE = {"LAKE": str(tmp_path / "missing")}
    queue = services.create_fifo_queue("orders")
    JobFactory(queue=queue, singleton_key="a", state=JobState.COMPLETED)

    said = jobs("audit", "--live-only")
    document = jobs(*command("analyze", "--live-only", "--json", folder=tmp_path)).json
    both = jobs("audit", "--live-only", "--lake", lake)

    assert (said.code, said.out.splitlines()) == (
        0, ["Read 1 job in the live table, and no lake.", "1 job of 1 key: every key kept its order."],
    )  # fmt: skip
    assert [document[name] for name in ("lake", "lake_runs", "lake_jobs", "live_jobs")] == ["", 0, 0, 1]
    assert "not allowed with" in both.error
    with pytest.raises(InvalidOption, match="live_only: contradicts the lake"):
        audit_order(spark=spark, lake=lake, live_only=True)
    assert jobs("audit").code == 5


# ----------------------------------------------------------------------------------------------- the lake and its disk


@pytest.mark.parametrize(
    ("lake", "reason", "todo"),
    (
        ("s3a://bucket/jobs", "S3AFileSystem", "--packages org.apache.hadoop:hadoop-aws:"),
        ("abfss://box@account.dfs.core.windows.net/x", "AzureBlobFileSystem", "org.apache.hadoop:hadoop-azure:"),
        ("gs://bucket/jobs", "", "--packages "),
        ("s3://bucket/jobs", "s3://", "S3 is s3a://"),
    ),
)  # fmt: skip
def test_a_missing_jar_is_named_with_the_package_that_brings_it(lake, reason, todo, spark, old):
    for name in ("audit", "archive"):
        said = jobs(name, "--lake", lake)

        assert said.code == 5
        assert said.error.startswith(f"The lake {lake} cannot be used: Spark ")
        assert reason in said.error
        assert todo in said.error
    assert Job.objects.count() == 1


@pytest.mark.parametrize("lake", ("/proc/lake", "/dev/null/lake", "/sys/lake"))
def test_a_lake_that_cannot_be_written_is_one_sentence(lake, spark, old):
    said = jobs("archive", "--lake", lake)

    assert said.code == 5, said
    assert said.error.startswith(f"The lake {lake} c")
    assert Job.objects.count() == 1


def on_a_full_disk(lake: Path) -> list[str]:
    """What starts a command that finds little space there: a small disk, or, where none can be made, a limit of 2 MB.

    That leaves room for the libraries that Spark unpacks, and is less than the one file of the run.
    """
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size=128k tmpfs {lake} && exec "$@"'
    if subprocess.run([*unshare, "sh", "-c", mount, "sh", "true"], capture_output=True, check=False).returncode:
        return ["sh", "-c", 'ulimit -f 4096 && exec "$@"', "sh"]
    return [*unshare, "sh", "-c", mount, "sh"]


def test_a_full_disk_is_one_sentence_and_nothing_is_deleted(spark, lake):
    queue = QueueFactory()
    for _ in range(400):
        JobFactory(queue=queue, state=JobState.COMPLETED, finalized_at=ago(days=8), data=token_hex(5_000))
    Path(lake).mkdir()

    said = run("archive", "--lake", lake, "--rest=0", "--master", "local[1,2]", before=on_a_full_disk(Path(lake)))

    assert said.returncode == 5, said.stderr
    *_, last = said.stderr.strip().splitlines()
    assert last.startswith(f"CommandError: The lake {lake} cannot be used: ")
    assert "No space left on device" in last or "File too large" in last
    assert "Traceback" not in said.stderr
    assert "\tat " not in said.stderr, "no stack of Java either"
    assert Job.objects.count() == 400


def test_a_data_file_that_is_damaged_is_one_sentence(spark, lake, old):
    jobs("archive", "--lake", lake)
    (path,) = Path(lake).rglob("*.parquet")
    path.with_name(f".{path.name}.crc").unlink()
    path.write_bytes(b"x" * 500)

    said = jobs("restore", old.pk, "--lake", lake)

    assert said.code == 5
    assert said.error.startswith(f"Spark failed at the lake {lake}: ")
    assert path.name in said.error
    assert "\n" not in said.error


def test_spark_that_cannot_start_is_one_sentence(transactional_db, tmp_path):
    said = run("audit", "--live-only", "--master", "nonsense")

    assert said.returncode == 5
    *above, last = said.stderr.strip().splitlines()
    assert last.startswith(
        "CommandError: Spark's Java process ended while it started. Java has printed the reason above."
    )
    assert [line for line in above if "Master" in line]
    assert "Traceback" not in said.stderr


# ------------------------------------------------------------------------------------------------- what is written


def test_a_report_that_cannot_be_written_is_one_sentence(spark, tmp_path):
    said = {path: jobs("analyze", "--report", path) for path in ("/dev/null/jobs.html", str(tmp_path), "/dev/full")}

    assert {path: one.code for path, one in said.items()} == {
        "/dev/null/jobs.html": 5,
        str(tmp_path): 2,
        "/dev/full": 5,
    }
    assert said["/dev/full"].error.startswith("The report /dev/full cannot be used: No space left on device.")
    assert "cannot be used: File exists (/dev/null)." in said["/dev/null/jobs.html"].error


def test_what_cannot_be_read_or_written_is_known_before_spark_starts(transactional_db, tmp_path):
    QueueFactory(name="work")
    file = tmp_path / "day.csv"
    file.write_text("n\n1\n")
    bulk = ("bulk_send", "--queue", "work")

    report, missing, aside = run_each(
        [
            ["analyze", "--report", "/dev/null/jobs.html"],
            [*bulk, str(tmp_path / "none.csv")],
            [*bulk, str(file), "--aside", "/proc/none/bad.jsonl"],
        ],
        **without_java(),
    )

    assert (report.returncode, "The report /dev/null/jobs.html cannot be used" in report.stderr) == (5, True)
    assert (missing.returncode, "none.csv' cannot be read: No such file" in missing.stderr) == (2, True)
    assert (aside.returncode, "aside: cannot be written: " in aside.stderr) == (2, True)
    assert {len(one.stderr.splitlines()) for one in (report, missing, aside)} == {1}


def test_tables_that_cannot_be_written_are_one_sentence(spark, tmp_path):
    said = jobs("analyze", "--report", tmp_path / "jobs.html", "--tables", "/dev/null/tables")

    assert said.code == 5
    assert said.error.startswith("The folder of the tables, /dev/null/tables, cannot be used: ")


# ------------------------------------------------------------------------------------------------- all other errors


def test_a_database_that_spark_cannot_use_is_an_error_of_the_database(spark, lake, old):
    """A column is renamed while the archive is about to read it."""
    from django_jobqueue.pipeline import archive_jobs

    def rename(old_name: str, new_name: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE jobqueue_job RENAME COLUMN {old_name} TO {new_name}")

    def damage(progress) -> None:
        if progress.stage == "writing" and not progress.total:
            rename("note", "remark")

    try:
        with pytest.raises(OperationalError, match=r'Spark could not use the database: .*column "?note'):
            archive_jobs(spark=spark, lake=lake, tell=damage)
    finally:
        rename("remark", "note")

    assert Job.objects.count() == 1


def test_an_unexpected_error_does_not_end_like_a_finding(spark, lake, old):
    """A mark without a version cannot come from us."""
    done = jobs("archive", "--lake", lake, "--json").json
    mark = Path(lake, f"run={done['run']}", "_VERIFIED")
    mark.with_name("._VERIFIED.crc").unlink()
    mark.write_text(json.dumps({"rows": 1}))

    said = jobs("audit", "--lake", lake, "--json")

    assert (said.code, said.json["error"]["code"]) == (6, "unexpected")
    assert said.error == "Unexpected error: KeyError: 'schema_version'. Run it again with --traceback."


def test_the_doctor_starts_no_spark_unless_it_is_asked_for_the_lake(transactional_db):
    code = (
        "import sys, django; django.setup()\n"
        "from django.core.management import call_command\n"
        "try: call_command('jobs', 'doctor')\n"
        "except SystemExit: pass\n"
        "print('pyspark' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True,
                          timeout=PATIENCE, check=False)  # fmt: skip

    assert said.stdout.splitlines()[-1] == "False", said.stderr
