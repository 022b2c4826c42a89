"""``manage.py jobs redrive``, and what the command says of dead letters elsewhere."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job, Operation, Queue
from tests.factories import QueueFactory
from tests.past import reread
from tests.services.lives import sent

from .calling import jobs

pytestmark = pytest.mark.django_db


@pytest.fixture
def orders() -> Queue:
    return QueueFactory(
        name="orders", policy="key_strict_fifo", dead_letter=QueueFactory(name="orders-dead"), retry_limit=0
    )


def fail_one(queue: Queue, key: str) -> Job:
    sent(queue, singleton_key=key)
    (job,) = services.fetch(queue.name)
    services.fail(job, "boom")
    return job


def test_dead_letters_go_back_and_the_operation_is_recorded(orders):
    there, gone = fail_one(orders, "a"), fail_one(orders, "b")
    services.delete(gone.pk)

    said = jobs("redrive", "orders-dead", "--reason", "repaired", "--operator", "ann", "--yes")

    assert said.code == 0
    assert said.out == "Redrove 2 jobs. For 1 the original was retried; for 1 a new job was sent.\n"
    assert reread(there).state == "retry"
    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.reason) == ("redrive", "ann", "repaired")


def test_the_json_has_the_numbers(orders):
    letter = fail_one(orders, "a")

    said = jobs("redrive", "orders-dead", "--json")

    found = {name: said.json[name] for name in ("number", "retried", "sent", "removed", "refused")}
    assert found == {"number": 1, "retried": 1, "sent": 0, "removed": 0, "refused": {}}
    assert len(said.json["moved"]) == 1
    assert reread(letter).state == "retry"


def test_what_stays_is_told_and_the_exit_code_is_1(orders):
    fail_one(orders, "a")
    QueueFactory(name="repaired", policy="key_strict_fifo")

    said = jobs("redrive", "orders-dead", "--to", "repaired")

    assert said.code == 1
    assert "Redrove 0 jobs." in said.out
    assert "its original still blocks the key 'a' of 'orders'" in said.out


def test_source_queue_and_limit_choose_the_letters(orders):
    for key in "abc":
        fail_one(orders, key)

    assert jobs("redrive", "orders-dead", "--source-queue", "orders", "--limit", 2).code == 0
    assert Job.objects.in_queue("orders-dead").count() == 1


def test_a_dry_run_changes_nothing(orders):
    fail_one(orders, "a")

    said = jobs("redrive", "orders-dead", "--dry-run")

    assert said.out.startswith("Would redrive 1 job (1 created).")
    assert Job.objects.in_queue("orders-dead").count() == 1
    assert not Operation.objects.exists()


def test_nothing_to_redrive(orders):
    said = jobs("redrive", "orders-dead")

    assert (said.code, said.out) == (0, "Would redrive 0 jobs.\n")


@pytest.mark.parametrize(
    ("args", "code", "text"),
    (
        (["orders-ded"], 3, "Did you mean 'orders-dead'?"),
        (["orders"], 2, "keeps no dead letters"),
        (["orders-dead", "--to", "ordrs"], 3, "Did you mean 'orders'?"),
        (["orders-dead", "--limit", "0"], 2, "limit"),
    ),
)
def test_wrong_input_is_an_error_that_says_what_is_wrong(orders, args, code, text):
    said = jobs("redrive", *args)

    assert said.code == code
    assert text in said.error


def test_the_doctor_offers_a_redrive_and_never_a_worker(orders):
    """A worker would run the dead orders again."""
    fail_one(orders, "a")
    Job.objects.in_queue("orders").delete()

    said = jobs("doctor")

    assert "1 dead letter in 'orders-dead'" in said.out
    assert "manage.py jobs list --queue orders-dead" in said.out
    assert "Fix: manage.py jobs redrive orders-dead" in said.out
    assert "runjobs --queue orders-dead" not in said.out
    assert "@job(queue='orders-dead')" not in said.out


def test_why_of_a_dead_letter_names_the_command(orders):
    job = fail_one(orders, "a")
    letter = Job.objects.get(queue="orders-dead")

    assert jobs("why", letter.pk).out == (
        f"It is a dead letter: a copy of job {job.pk} of 'orders', which failed for good. It waits for an operator: "
        "manage.py jobs redrive orders-dead retries that job, or sends it again if it is gone.\n"
    )
