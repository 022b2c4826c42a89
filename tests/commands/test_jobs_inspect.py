"""``manage.py jobs``: the read-only subcommands."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_jobqueue import handlers, services
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Queue, Worker
from django_jobqueue.states import Hold, JobState
from tests.factories import ERROR, JobFactory
from tests.past import ago, rewrite
from tests.services.lives import claimed, sent

from .calling import jobs

pytestmark = pytest.mark.django_db


def ids(said):
    return [job["id"] for job in said.json["jobs"]]


# -------------------------------------------------------------------------------------------------------------- list


def test_jobs_are_listed_newest_first_unless_asked_otherwise(queue):
    first, second, third = (str(sent(queue).pk) for _ in range(3))

    assert ids(jobs("list", "--json")) == [third, second, first]
    assert ids(jobs("list", "--oldest", "--json")) == [first, second, third]
    assert ids(jobs("list", "--limit", 1, "--json")) == [third]


def test_every_filter_narrows_the_list(queue, fifo_queue):
    plain = sent(queue)
    keyed = sent(fifo_queue, singleton_key="ada")
    tagged = sent(queue, tags=["red", "blue"], name="shop.mail")
    held = claimed(queue, worker="w7")

    def listed(*args):
        return set(ids(jobs("list", *args, "--json")))

    assert listed("--queue", fifo_queue.name) == {str(keyed.pk)}
    assert listed("--state", "active") == {str(held.pk)}
    assert listed("--state", "active", "--state", "created", "--queue", queue.name) == {
        str(plain.pk), str(tagged.pk), str(held.pk)
    }  # fmt: skip
    assert listed("--key", "ada") == {str(keyed.pk)}
    assert listed("--tag", "red") == listed("--tag", "red", "--tag", "blue") == {str(tagged.pk)}
    assert listed("--tag", "green") == set()
    assert listed("--handler", "shop.mail") == {str(tagged.pk)}
    assert listed("--worker", "w7") == {str(held.pk)}


def test_the_list_for_people_has_aligned_columns(queue):
    job = sent(queue, name="shop.mail", priority=7)

    head, line = jobs("list").out.rstrip("\n").split("\n")

    assert line.startswith(f"#{job.seq}")
    assert head.index("id") == line.index(str(job.pk))
    assert head.index("handler") == line.index("shop.mail")
    assert head.index("priority") + len("priority") == line.index(" 7 ") + 2


def test_an_error_cannot_speak_to_the_terminal(queue):
    JobFactory(queue=queue, state=JobState.FAILED, error="\nValueError: \x1b[31mred\r\nand more")

    said = jobs("list", "--state", "failed").out

    assert "ValueError" in said
    assert "\x1b" not in said
    assert "\r" not in said


def test_an_empty_list_says_so(db):
    assert jobs("list").out == "No job was found.\n"
    assert jobs("list", "--json").json == {"jobs": []}


# -------------------------------------------------------------------------------------------------------------- show


def test_a_job_is_shown_with_everything(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED, data={"order": 7}, tags=["red"], note="looked at")

    said = jobs("show", job.pk, "--json").json

    assert said["id"] == str(job.pk)
    assert said["data"] == {"order": 7}
    assert said["tags"] == ["red"]
    assert said["attempts"][0]["error"] == ERROR
    assert said["why"] == services.why(job)
    missing = {"throttle_slot", "sent_xid", "claim_xmin", "first_start_after", "grouped"}  # internal
    renamed = {"queue": "queue", "name": "handler", "singleton_key": "key", "group_key": "group", "assignee": "worker"}
    names = {renamed.get(field.name, field.name) for field in Job._meta.concrete_fields}
    assert names - missing - set(said) == set()


def test_a_job_is_shown_to_people_with_its_attempts_and_its_sentence(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED, data={"order": 7})

    said = jobs("show", job.pk).out

    assert said.startswith("why")
    assert '"order": 7' in said
    assert "Attempts that did not succeed" in said
    assert ERROR in said.split("Attempts that did not succeed")[1]


def test_sensitive_values_are_hidden_unless_asked_for(queue, settings):
    data = {"user": {"Password": "hunter2", "name": "ada"}, "list": [{"apiKey": "abc"}], "api-key": "xyz"}
    job = JobFactory(queue=queue, state=JobState.COMPLETED, data=data, output={"token": "t0"})

    said = jobs("show", job.pk, "--json").out
    assert "ada" in said
    assert not any(secret in said for secret in ("hunter2", "abc", "xyz", "t0"))

    assert jobs("show", job.pk, "--data", "--json").json["data"] == data
    settings.JOBQUEUE = {"REDACT": ["name"]}
    assert jobs("show", job.pk, "--json").json["data"]["user"] == {"Password": "hunter2", "name": "********"}


# --------------------------------------------------------------------------------------------------------------- why


def test_why_answers_in_one_sentence(queue):
    job = sent(queue)

    said = jobs("why", job.pk)

    assert said.out == "No worker is running, and none was running recently: start one with manage.py runjobs.\n"
    assert jobs("why", job.pk, "--json").json == {
        "number": job.seq, "id": str(job.pk), "queue": queue.name, "state": "created", "why": said.out.strip()
    }  # fmt: skip


def test_why_knows_the_handlers_of_the_project(queue):
    Worker.objects.create(name="w")
    job = sent(queue, name="gone.handler")

    assert "no handler named 'gone.handler'" in jobs("why", job.pk).out


def test_why_goes_without_handlers_that_cannot_be_imported(queue, settings, monkeypatch, tmp_path, caplog):
    Worker.objects.create(name="w")
    (tmp_path / "broken_app").mkdir()
    (tmp_path / "broken_app" / "__init__.py").touch()
    (tmp_path / "broken_app" / "jobs.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "broken_app"]

    assert jobs("why", sent(queue).pk).out == "Nothing holds it: it is the next to be fetched.\n"


@pytest.mark.parametrize("verb", ("show", "why"))
def test_a_job_that_is_not_there_has_its_own_exit_code(db, verb):
    id = uuid7()

    said = jobs(verb, id)

    assert said.code == 3
    assert said.error.startswith(f"There is no job {id}.")


# ----------------------------------------------------------------------------------------------------------- blocked


def test_blocked_keys_are_listed_with_what_waits_behind_them(fifo_queue):
    old = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="ada", error="KeyError: 'x'\nand more")
    rewrite(old, finalized_at=ago(hours=1))
    JobFactory(queue=fifo_queue, state=JobState.EXPIRED, singleton_key="ben")
    behind = [JobFactory(queue=fifo_queue, singleton_key="ada", hold=Hold.LANE) for _ in range(2)]
    JobFactory(queue=fifo_queue, state=JobState.ACTIVE, singleton_key="cem")

    said = jobs("blocked", "--json")

    assert said.code == 1
    ada, ben = said.json["blocked"]
    assert (ada["key"], ada["queue"], ada["job"], ada["error"]) == ("ada", "orders", str(old.pk), "KeyError: 'x'")
    assert (ada["waiting"], ben["waiting"]) == (2, 0)
    assert datetime.fromisoformat(ada["oldest_waiting_at"]) == behind[0].created_at
    assert datetime.fromisoformat(ada["since"]) < timezone.now() - timedelta(minutes=59)
    told = jobs("blocked", fifo_queue.name)
    assert told.code == 1
    assert "KeyError: 'x'" in told.out
    assert "2 blocked keys." in told.out


def test_no_blocked_key_is_fine(fifo_queue):
    assert jobs("blocked") == jobs("blocked", fifo_queue.name) == (0, "No key is blocked.\n", "")


def test_blocked_keys_of_an_unordered_queue_are_bad_input(queue):  # R131
    said = jobs("blocked", queue.name)

    assert said.code == 2
    assert "key_strict_fifo" in said.error


# ------------------------------------------------------------------------------------------------------------- stats


def test_statistics_count_every_state_of_every_queue(queue, fifo_queue):
    for state in JobState:
        JobFactory(queue=queue, state=state)
    JobFactory(queue=queue, created_at=ago(hours=2))

    by_name = {one["queue"]: one for one in jobs("stats", "--json").json["queues"]}

    assert set(by_name) == {"default", "work", "orders"}
    assert by_name["work"]["states"] == {state.value: 1 + (state == JobState.CREATED) for state in JobState}
    assert by_name["work"]["total"] == len(JobState) + 1
    assert 7200 <= by_name["work"]["oldest_waiting_seconds"] < 7300
    assert by_name["orders"]["total"] == 0


def test_statistics_of_one_queue_say_when_it_was_paused(queue):
    services.pause(queue.name)

    (said,) = jobs("stats", queue.name, "--json").json["queues"]

    assert datetime.fromisoformat(said["paused_at"]) == Queue.objects.get(pk=queue.name).paused_at
    assert "paused since" in jobs("stats", queue.name).out


# ----------------------------------------------------------------------------------------------------------- workers


def test_workers_are_alive_stopping_silent_or_stopped_and_hold_jobs(queue):
    alive = Worker.objects.create(name="alive", queues=["work"], tags=["gpu"], pid=7, host="h1")
    Worker.objects.create(name="stopping", stopping_at=timezone.now())
    Worker.objects.create(name="silent", heartbeat_at=ago(hours=1))
    Worker.objects.create(name="stopped", stopped_at=timezone.now(), exit_text="signal 9")
    Worker.objects.create(name="old", stopped_at=ago(days=3))
    JobFactory(queue=queue, state=JobState.ACTIVE, incarnation=alive.pk)

    said = jobs("workers", "--json").json["workers"]

    assert {one["name"]: (one["state"], one["jobs"]) for one in said} == {
        "alive": ("alive", 1), "stopping": ("stopping", 0), "silent": ("silent", 0), "stopped": ("stopped", 0)
    }  # fmt: skip
    assert [one["name"] for one in jobs("workers", "--all", "--json").json["workers"]][-1] == "old"
    told = jobs("workers").out
    assert "signal 9" in told
    assert "1h" in told


def test_without_workers_it_says_how_to_start_one(db):
    assert "manage.py runjobs" in jobs("workers").out


# --------------------------------------------------------------------------------------------------------- schedules


def test_schedules_are_listed_in_english_with_their_next_slots(queue):
    services.create_schedule("nightly", queue.name, "30 2 * * *", timezone="Europe/Berlin")

    (said,) = jobs("schedules", "--next", 2, "--json").json["schedules"]

    assert said["cron"] == "30 2 * * *"
    assert "02:30" in said["description"]
    assert len(said["next_slots"]) == 2
    assert all("T02:30+0" in slot for slot in said["next_slots"])
    assert "nightly" in jobs("schedules", queue.name).out


def test_a_schedule_that_makes_no_sense_says_so_and_hides_no_other(queue):
    services.create_schedule("good", queue.name, "0 * * * *")
    services.create_schedule("bad", queue.name, "0 * * * *")
    type(services.create_schedule("bad", queue.name, "0 * * * *")).objects.filter(pk="bad").update(cron="61 * * * *")

    bad, good = jobs("schedules", "--json").json["schedules"]

    assert bad["problem"]
    assert bad["next_slots"] == []
    assert not good["problem"]


def test_no_schedules_are_no_error(db):
    assert jobs("schedules") == (0, "There are no schedules.\n", "")


@pytest.fixture(autouse=True)
def _same_handlers():
    with handlers.registry.restored():
        yield


# ---------------------------------------------------------------------------------------------------------- numbers


def test_every_argument_that_is_a_job_may_be_its_number(fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED)

    for number in (str(job.seq), f"#{job.seq}"):
        for command in ("show", "why"):
            assert jobs(command, number, "--json").json["id"] == str(job.pk)
        for args in (("retry",), ("skip", "--reason", "x"), ("delete",)):
            assert jobs(*args, number, "--dry-run", "--json").json["moved"] == [str(job.pk)]
    assert jobs("retry", job.seq).out == "Retried 1 job.\n"
    assert jobs("cancel", job.seq).out == "Cancelled 1 job.\n"


def test_numbers_of_jobs_are_printed(fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED)

    assert f"  #{job.seq}  " in jobs("blocked").out
    assert f"#{job.seq}" in jobs("show", job.pk).out.split()
    assert jobs("retry", job.pk, "--dry-run").out == f"Would retry 1 job (1 failed).\n  #{job.seq} {job.pk}\n"
    assert [each["number"] for each in jobs("list", "--json").json["jobs"]] == [job.seq]
    assert [each["number"] for each in jobs("blocked", "--json").json["blocked"]] == [job.seq]


@pytest.mark.parametrize("command", ("show", "why", "retry", "cancel", "delete"))
def test_what_is_not_found_is_named(queue, command):
    unknown = jobs(command, 99_999_999, "--json")
    nonsense = jobs(command, "nonsense")

    assert (unknown.code, unknown.json["error"]["code"]) == (3, "job_not_found")
    assert unknown.json["error"]["message"] == "No job has the number 99999999."
    assert "expected the number or the id of a job, such as 154, got 'nonsense'" in nonsense.error
    assert "expected the id of an operation, got '154'" in jobs("resume_operation", "154").error
