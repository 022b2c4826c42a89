"""``manage.py jobs``: the subcommands that change jobs or queues."""

from __future__ import annotations

import io
import sys
from datetime import timedelta

import pytest
from django.core.management.color import no_style

from django_jobqueue import services
from django_jobqueue.cli.operate import skip
from django_jobqueue.cli.selection import FILTERS
from django_jobqueue.cli.subcommands import this_user
from django_jobqueue.expressions import StatementTimestamp
from django_jobqueue.identifiers import uuid7
from django_jobqueue.models import Job, Maintenance, Operation, Queue
from django_jobqueue.states import DEAD, FINAL, OCCUPIED, RETRYING, Hold, JobState
from tests.factories import JobFactory
from tests.past import ago, reread, rewrite
from tests.services.lives import claimed, sent

from .calling import jobs

pytestmark = pytest.mark.django_db


# -------------------------------------------------------------------------------------------------------------- send


def test_a_job_is_sent_with_all_its_options(fifo_queue):
    said = jobs(
        "send", fifo_queue.name, '{"order": 7}', "--name", "shop.pay", "--key", "ada", "--group", "g", "--priority", 5,
        "--delay", "2m", "--tag", "red", "--tag", "blue", "--json",
    )  # fmt: skip

    job = Job.objects.get()
    assert said.code == 0
    assert said.json["id"] == str(job.pk)
    assert job.data == {"order": 7}
    assert (job.name, job.singleton_key, job.group_key, job.priority) == ("shop.pay", "ada", "g", 5)
    assert job.tags == ["red", "blue"]
    assert 119 < (job.start_after - job.created_at).total_seconds() < 121


def test_data_is_read_from_the_standard_input(queue, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('["from", "a pipe"]'))

    said = jobs("send", queue.name, "-")

    assert Job.objects.get().data == ["from", "a pipe"]
    job = Job.objects.get()
    assert said.out == f"Sent #{job.seq} to work: {job.pk}.\n"


def test_a_job_without_data_has_none(queue):
    jobs("send", queue.name)

    assert Job.objects.get().data is None


@pytest.mark.parametrize("data", ("{order: 7}", "", "[" * 100_000, "NaN", '"\\ud800"'))
def test_data_that_is_no_json_is_bad_input(queue, data):
    said = jobs("send", queue.name, data, "--json")

    assert said.code == 2
    assert said.json["error"]["code"] == "invalid_data"
    assert not Job.objects.exists()


def test_a_send_that_the_policy_refuses_says_so(exclusive_queue):
    assert jobs("send", exclusive_queue.name).code == 0

    said = jobs("send", exclusive_queue.name, "--json")

    assert (said.code, said.json["sent"], said.json["id"]) == (1, False, None)


def test_a_send_without_its_key_is_bad_input_with_a_hint(fifo_queue):  # R021
    said = jobs("send", fifo_queue.name)

    assert said.code == 2
    assert "FIFO queues require a singleton_key" in said.error
    assert "Pass singleton_key" in said.error


@pytest.mark.parametrize("delay", ("soon", "-5", "5x", "", "1e400", "nan"))
def test_a_delay_that_is_none_is_wrong_usage(queue, delay):
    assert jobs("send", queue.name, f"--delay={delay}").code != 0
    assert not Job.objects.exists()


@pytest.mark.parametrize(("text", "seconds"), (("90", 90), ("1.5", 1.5), ("5m", 300), ("2h", 7200), ("1d", 86400)))
def test_a_delay_has_a_unit_or_is_in_seconds(queue, text, seconds):
    jobs("send", queue.name, "--delay", text)

    job = Job.objects.get()
    assert job.hold == Hold.UNTIL
    assert abs((job.start_after - job.created_at).total_seconds() - seconds) < 0.5


# ------------------------------------------------------------------------------------ retry, skip, cancel and delete


def test_a_dead_job_is_retried_and_who_did_it_is_recorded(queue):  # R006
    job = JobFactory(queue=queue, state=JobState.FAILED)

    said = jobs("retry", job.pk, "--operator", "olga", "--reason", "new card", "--json")

    assert said.json == {"verb": "retry", "dry_run": False, "number": 1, "moved": [str(job.pk)], "refused": {}}
    assert reread(job).state == JobState.RETRY
    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.reason) == ("retry", "olga", "new card")


def test_the_operator_is_whoever_is_logged_in(queue, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")

    jobs("retry", JobFactory(queue=queue, state=JobState.FAILED).pk)

    assert Operation.objects.get().operator == "ada"


def test_what_cannot_be_retried_is_refused_with_the_reason(queue):
    dead, active, gone = JobFactory(queue=queue, state=JobState.FAILED), claimed(queue), uuid7()

    said = jobs("retry", dead.pk, active.pk, gone, "--json")

    assert said.code == 1
    assert said.json["moved"] == [str(dead.pk)]
    assert said.json["refused"] == {str(active.pk): "it is active", str(gone): "there is no such job"}
    assert f"Refused #{active.seq} {active.pk}: it is active." in jobs("retry", active.pk).out


def test_a_dead_job_is_skipped_with_a_reason(fifo_queue):  # R005
    dead = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a")
    behind = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    said = jobs("skip", dead.pk, "--reason", "refunded", "--operator", "olga")

    assert said == (0, "Skipped 1 job.\n", "")
    assert reread(dead).note == "olga: refunded"
    assert reread(behind).hold is None


def test_a_skip_without_a_reason_is_wrong_usage(queue):
    job = JobFactory(queue=queue, state=JobState.FAILED)

    assert "--reason" in jobs("skip", job.pk).error
    assert jobs("skip", job.pk, "--reason", "  ").code == 2
    assert reread(job).state == JobState.FAILED


def test_jobs_are_cancelled_in_two_steps_or_by_force(queue):  # B12
    waiting, active, forced, final = (
        sent(queue),
        claimed(queue),
        claimed(queue),
        JobFactory(queue=queue, state="completed"),
    )

    said = jobs("cancel", waiting.pk, active.pk, final.pk, "--json")
    jobs("cancel", forced.pk, "--force")

    assert said.code == 1
    assert said.json["moved"] == [str(waiting.pk), str(active.pk)]
    assert said.json["refused"] == {str(final.pk): "it is completed"}
    states = [reread(job).state for job in (waiting, active, forced)]
    assert states == [JobState.CANCELLED, JobState.CANCELLING, JobState.STOPPED]


def test_finished_jobs_are_deleted_all_or_none(queue):  # R026 B26
    done, active = JobFactory(queue=queue, state=JobState.COMPLETED), claimed(queue)

    said = jobs("delete", done.pk, active.pk, "--json")
    assert (said.code, said.json["error"]["code"]) == (1, "invalid_transition")
    assert Job.objects.count() == 2

    assert jobs("delete", done.pk, "--operator", "olga").out == "Deleted 1 job.\n"
    assert list(Job.objects.values_list("pk", flat=True)) == [active.pk]
    assert Operation.objects.get().verb == "delete"
    assert jobs("delete", done.pk).code == 3


@pytest.mark.django_db(transaction=True)
def test_a_job_that_fails_again_while_the_operator_is_asked_is_not_skipped(queue):  # B43
    first, second = (claimed(queue) for _ in range(2))
    for job in (first, second):
        services.fail(job, "it failed", for_good=True)

    def answer_late(question: str) -> bool:
        services.retry(first.pk)
        services.fail(services.fetch(queue.name)[0], "it failed again", for_good=True)
        return True

    options = {**dict.fromkeys(FILTERS), "ids": [first.pk, second.pk], "limit": None, "dry_run": False}
    said = skip({**options, "operator": "olga", "reason": "because"}, no_style(), "default", answer_late)

    assert said.document["moved"] == [second.pk]
    assert said.document["refused"] == {str(first.pk): "it changed after it was shown"}
    assert reread(first).state == "failed"


TAKES = {"retry": DEAD, "skip": DEAD | RETRYING, "cancel": OCCUPIED, "delete": FINAL}


def called(verb, *args):
    return jobs(verb, *args, *(["--reason", "because"] if verb == "skip" else []))


@pytest.mark.parametrize("verb", TAKES)
def test_filters_mean_the_jobs_that_the_verb_takes(queue, verb):
    made = {state: JobFactory(queue=queue, state=state, tags=["red"]) for state in JobState}
    JobFactory(queue=queue, state=sorted(TAKES[verb])[0])  # without the tag

    said = called(verb, "--queue", queue.name, "--tag", "red", "--json")

    assert said.code == 0
    assert set(said.json["moved"]) == {str(made[state].pk) for state in TAKES[verb]}


@pytest.mark.parametrize("verb", TAKES)
def test_a_dry_run_says_what_would_happen_and_changes_nothing(queue, verb):
    made = {state: JobFactory(queue=queue, state=state) for state in JobState}
    before = list(Job.objects.order_by("pk").values())

    said = called(verb, "--queue", queue.name, "--dry-run", "--json")
    told = called(verb, "--queue", queue.name, "--dry-run")

    assert said.json["dry_run"] is True
    assert set(said.json["moved"]) == {str(made[state].pk) for state in TAKES[verb]}
    assert told.out.startswith(f"Would {verb} {len(TAKES[verb])} jobs (")
    assert list(Job.objects.order_by("pk").values()) == before
    assert not Operation.objects.exists()


@pytest.mark.parametrize("verb", ("retry", "skip", "cancel"))
def test_a_dry_run_by_ids_says_what_would_be_refused(queue, verb):
    done, gone = JobFactory(queue=queue, state=JobState.COMPLETED), uuid7()

    said = called(verb, done.pk, gone, "--dry-run", "--json")

    assert said.code == 1
    assert said.json["moved"] == []
    assert said.json["refused"] == {str(done.pk): "it is completed", str(gone): "there is no such job"}


def test_a_dry_run_of_a_delete_fails_as_the_delete_would(queue):
    done, waiting = JobFactory(queue=queue, state=JobState.COMPLETED), sent(queue)

    assert jobs("delete", done.pk, waiting.pk, "--dry-run") == jobs("delete", done.pk, waiting.pk)
    assert jobs("delete", done.pk, uuid7(), "--dry-run").code == 3


@pytest.mark.parametrize("verb", TAKES)
def test_neither_ids_nor_filters_are_wrong_usage(queue, verb):  # B38
    JobFactory(queue=queue, state=sorted(TAKES[verb])[0])

    said = called(verb)

    assert said.code == 2
    assert "needs ids or filters" in said.error


@pytest.mark.parametrize("verb", TAKES)
def test_ids_and_filters_together_are_wrong_usage(queue, verb):
    assert called(verb, uuid7(), "--queue", queue.name).code == 2


@pytest.mark.parametrize("verb", TAKES)
def test_a_state_that_the_verb_never_takes_is_bad_input(queue, verb):
    state = sorted(set(JobState) - TAKES[verb])[0]

    said = called(verb, "--state", state)

    assert said.code == 2
    assert f"{verb} takes no {state} jobs" in said.error


@pytest.mark.parametrize("verb", TAKES)
def test_filters_that_find_nothing_are_fine(queue, verb):
    said = called(verb, "--queue", queue.name, "--json")

    assert (said.code, said.json["number"]) == (0, 0)


def test_a_limit_takes_the_oldest(queue):
    first, _ = (JobFactory(queue=queue, state=JobState.FAILED) for _ in range(2))

    assert called("retry", "--queue", queue.name, "--limit", 1, "--json").json["moved"] == [str(first.pk)]
    assert called("retry", "--queue", queue.name, "--limit", 0).code == 2


# ------------------------------------------------------------------------------------------------ purge, pause, resume


def test_a_queue_is_purged_whole_or_by_state(queue, fifo_queue):
    for state in (JobState.COMPLETED, JobState.COMPLETED, JobState.ACTIVE):
        JobFactory(queue=queue, state=state)
    kept = sent(fifo_queue, singleton_key="a")

    assert jobs("purge", queue.name, "--dry-run", "--json").json["number"] == 3
    assert jobs("purge", queue.name, "--state", "completed", "--dry-run").out == "Would delete 2 jobs of work.\n"
    assert jobs("purge", queue.name, "--state", "completed", "--operator", "olga", "--json").json["number"] == 2
    assert jobs("purge", queue.name).out == "Deleted 1 job of work.\n"
    assert list(Job.objects.all()) == [kept]
    assert Operation.objects.filter(verb="purge", operator="olga", moved=2).exists()


def test_a_purge_of_a_state_that_does_not_exist_is_bad_input(queue):
    assert jobs("purge", queue.name, "--state", "done").code == 2


def test_a_queue_is_paused_and_resumed(queue):
    said = jobs("pause", queue.name, "--json")
    assert said.json["paused_at"] is not None
    assert Queue.objects.get(pk=queue.name).is_paused

    assert jobs("resume", queue.name, "--operator", "ann", "--reason", "done").code == 0
    assert not Queue.objects.get(pk=queue.name).is_paused
    assert list(Operation.objects.order_by("started_at").values_list("verb", "operator", "reason")) == [
        ("pause", this_user(), ""),
        ("resume", "ann", "done"),
    ]


@pytest.mark.parametrize("verb", ("pause", "resume", "purge", "send", "stats", "blocked", "schedules"))
def test_a_queue_that_is_not_there_has_its_own_exit_code_and_a_guess(queue, verb):
    said = jobs(verb, "wrok")

    assert said.code == 3
    assert "Did you mean 'work'?" in said.error


def test_verbs_are_called_on_the_database_that_is_named(queue):
    job = sent(queue)

    assert jobs("list", "--database", "default", "--json").json["jobs"][0]["id"] == str(job.pk)
    said = jobs("list", "--database", "elsewhere")
    assert said.code == 2
    assert "elsewhere" in said.error


def test_invalid_settings_are_reported_in_a_sentence(queue, settings):
    settings.JOBQUEUE = {"POLL_SECOND": 1}

    said = jobs("show", sent_raw(queue), "--json")

    assert said.code == 2
    assert "POLL_SECONDS" in said.json["error"]["message"]


def sent_raw(queue):
    return JobFactory(queue=queue).pk


def test_services_are_the_only_writers(queue):
    """The verbs of the command are those of ``services``: a job it cancels can be found there."""
    job = sent(queue)
    jobs("cancel", job.pk)

    assert services.get_job(job.pk).state == JobState.CANCELLED


# --------------------------------------------------------------------------------------------------------- maintain


def test_one_pass_of_maintenance_runs_and_is_reported_step_by_step(queue):
    job = claimed(queue)
    rewrite(job, expire_at=ago(hours=1), retry_limit=2)

    said = jobs("maintain", "--once", "--json")

    assert said.code == 0
    assert {step["name"]: step["done"] for step in said.json["steps"]}["expire"] == {"work": 1}
    assert reread(job).state == JobState.RETRY
    assert "expire" in jobs("maintain", "--once").out


def test_maintenance_that_another_process_runs_is_left_to_it(queue):
    jobs("maintain", "--once")
    Maintenance.objects.update(lease_until=StatementTimestamp() + timedelta(seconds=60))

    assert jobs("maintain", "--once") == (0, "Another process is running maintenance.\n", "")
    assert jobs("maintain", "--once", "--json").json["skipped"] is True


def test_maintenance_without_end_is_what_workers_do(queue):
    assert "--once" in jobs("maintain").error
