"""Queues: figures, pause and resume; they are created and changed by verbs."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_jobqueue import services
from django_jobqueue.models import Operation, Queue
from django_jobqueue.states import JobState
from tests.admin.pages import read
from tests.factories import JobFactory, QueueFactory

pytestmark = pytest.mark.django_db

QUEUES = "/admin/jobqueue/queue/"


def page_of(queue):
    return reverse("admin:jobqueue_queue_change", args=[quote(queue.name)])


def form(client, address=f"{QUEUES}add/", **changes):
    """Post the form of a queue as it is shown, with changes."""
    shown = client.get(address).context["adminform"].form
    given = {name: shown[name].value() for name in shown.fields}
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    return client.post(address, given | changes)


def test_the_list_says_what_waits_and_runs(boss, queue):
    JobFactory(queue=queue)
    JobFactory(queue=queue, state=JobState.ACTIVE)
    QueueFactory(name="letters")
    services.update_queue(queue.name, dead_letter="letters")

    page = read(boss.get(QUEUES)).text

    assert "work" in page
    assert "letters" in page
    row = boss.get(QUEUES).context["cl"].result_list
    figures = {one.name: one.figures for one in row}["work"]
    assert (figures.waiting, figures.running) == (1, 1)


def test_its_page_says_the_policy_in_a_sentence(boss, fifo_queue):
    assert "one at a time, in the order they were sent" in read(boss.get(page_of(fifo_queue))).text


def test_a_queue_is_paused_and_resumed(boss, queue):
    pause = reverse("admin:jobqueue_queue_pause", args=[quote(queue.name)])
    assert "give a reason" in read(boss.post(pause, {"reason": " "}, follow=True)).text
    assert not Queue.objects.get(pk=queue.pk).is_paused
    boss.post(pause, {"reason": "the bank is down"})
    assert Queue.objects.get(pk=queue.pk).is_paused
    assert "paused" in read(boss.get(page_of(queue))).text
    boss.post(reverse("admin:jobqueue_queue_resume", args=[quote(queue.name)]))

    assert not Queue.objects.get(pk=queue.pk).is_paused
    operations = read(boss.get("/admin/jobqueue/operation/")).text
    assert f"pause queue {queue.name} boss the bank is down" in operations
    assert f"resume queue {queue.name} boss" in operations
    assert read(boss.get(f"/admin/jobqueue/operation/?queue={quote(queue.name)}")).text.count("the bank is down") == 1
    assert "the bank is down" not in read(boss.get("/admin/jobqueue/operation/?queue=other")).text


def test_several_are_paused_and_resumed(boss, queue, fifo_queue):
    given = {"_selected_action": [queue.pk, fifo_queue.pk], "index": 0}

    boss.post(QUEUES, {**given, "action": "pause_queues"})
    assert not Queue.objects.paused().exists()
    boss.post(QUEUES, {**given, "action": "pause_queues", "reason": "the bank is down"})
    assert Queue.objects.paused().count() == 2
    boss.post(QUEUES, {**given, "action": "resume_queues"})
    assert not Queue.objects.paused().exists()
    assert Operation.objects.filter(operator="boss").count() == 4


def test_a_queue_is_made_by_the_verb(boss):
    response = form(boss, name="new", policy="exclusive", retry_limit=7)

    made = Queue.objects.get(pk="new")
    assert response.status_code == 302
    assert (made.policy, made.retry_limit, made.from_code) == ("exclusive", 7, False)


def test_what_the_verb_refuses_is_said_beside_the_field(boss, queue):
    taken = form(boss, name=queue.name)
    assert "Queue with this Name already exists" in read(taken).text
    bad = form(boss, name="a\tb")
    assert bad.status_code == 200
    assert not Queue.objects.filter(name__startswith="a").exists()
    short = form(boss, name="x", heartbeat_seconds=3)
    assert "at least 10" in read(short).text


def test_an_option_is_changed_and_what_is_fixed_stays(boss, queue):
    response = form(boss, page_of(queue), retry_limit=9, policy="exclusive", name="other", partition="on")

    changed = Queue.objects.get(pk=queue.pk)
    assert response.status_code == 302
    assert (changed.retry_limit, changed.policy, changed.partition) == (9, "standard", False)
    assert Queue.objects.filter(pk="other").count() == 0
    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.queue) == ("update_queue", "boss", queue.pk)
    assert operation.details["changed"] == {"retry_limit": {"before": 2, "after": 9}}
    page = read(boss.get(f"/admin/jobqueue/operation/{operation.pk}/change/")).text
    assert "Changed fields Field Before After retry_limit 2 9" in page


def test_a_circle_of_dead_letters_is_refused(boss, queue):
    other = QueueFactory(name="other", dead_letter=queue)

    page = form(boss, page_of(queue), dead_letter=other.name)

    assert "circle" in read(page).text
    assert Queue.objects.get(pk=queue.pk).dead_letter_id is None


def test_what_settings_declare_is_read_only(boss):
    declared = QueueFactory(name="declared", from_code=True)

    page = boss.get(page_of(declared))

    assert "Declared in settings" in read(page).text
    assert boss.post(page_of(declared), {"retry_limit": 9}).status_code == 403
    assert Queue.objects.get(pk="declared").retry_limit == 2


def test_a_name_of_any_kind_has_a_page(boss):
    odd = QueueFactory(name='a/b _2F?#"<x>')

    assert boss.get(page_of(odd)).status_code == 200
    boss.post(reverse("admin:jobqueue_queue_pause", args=[quote(odd.name)]), {"reason": "odd"})
    assert Queue.objects.get(pk=odd.pk).is_paused


def test_pausing_has_its_permission(login, queue):
    pause = reverse("admin:jobqueue_queue_pause", args=[quote(queue.name)])

    assert login("view_queue", "change_queue").post(pause).status_code == 403
    assert not Queue.objects.paused().exists()
    assert login("view_queue", "pause_queue", name="may").post(pause, {"reason": "x"}).status_code == 302
    assert Queue.objects.paused().exists()
