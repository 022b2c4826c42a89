"""Blocked keys: the list, the waiting jobs, retry and skip."""

from __future__ import annotations

import pytest

from django_jobqueue import services
from django_jobqueue.admin.blocked_keys import BlockedKeyAdmin
from django_jobqueue.models import Operation
from django_jobqueue.services.inspect.lanes import behind
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, choose, confirm, job_url, read
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread

pytestmark = pytest.mark.django_db


def block(queue, key, *, waiting=0, **columns):
    blocker = JobFactory(queue=queue, singleton_key=key, state=JobState.FAILED, **columns)
    return blocker, [JobFactory(queue=queue, singleton_key=key, hold="lane") for _ in range(waiting)]


def keys(client, query=""):
    return [row.singleton_key for row in client.get(f"{BLOCKED}?{query}").context["cl"].result_list]


def test_no_key_is_blocked(boss):
    assert "No key is blocked" in read(boss.get(BLOCKED)).text


def test_each_says_what_blocks_it_and_who_waits(boss, fifo_queue):
    blocker, waiting = block(fifo_queue, "ada", waiting=3, error="ShopError: card expired\nand more")
    alone, _ = block(fifo_queue, "ben")

    page = read(boss.get(BLOCKED)).text

    assert f"#{blocker.seq} ShopError: card expired" in page
    assert f"#{waiting[0].seq}" in page
    assert f"#{waiting[1].seq}" not in page
    assert "no job waits" in page
    assert boss.get(f"{BLOCKED}{alone.pk}/change/").url == job_url(alone)


def test_the_longest_blocked_of_all_queues_comes_first(boss, fifo_queue):
    other = QueueFactory(policy="key_strict_fifo", name="other")
    for hours, queue, key in ((1, fifo_queue, "a"), (3, other, "b"), (2, fifo_queue, "c")):
        block(queue, key, finalized_at=ago(hours=hours))
    JobFactory(queue=QueueFactory(), state=JobState.FAILED)  # failed, but blocks no key

    assert keys(boss) == ["b", "c", "a"]
    assert keys(boss, "queue=other") == ["b"]
    assert keys(boss, "q=c") == ["c"]
    assert keys(boss, "q=missing") == []


def test_there_are_pages(boss, fifo_queue, monkeypatch):
    monkeypatch.setattr(BlockedKeyAdmin, "list_per_page", 2)
    for number in range(5):
        block(fifo_queue, f"key-{number}", finalized_at=ago(hours=10 - number))

    assert [keys(boss, f"p={page}") for page in (1, 2, 3)] == [["key-0", "key-1"], ["key-2", "key-3"], ["key-4"]]
    assert keys(boss, "p=99") == ["key-4"]
    assert keys(boss, "p=x") == ["key-0", "key-1"]


def test_a_page_costs_the_same_however_many_there_are(boss, fifo_queue, django_assert_max_num_queries):
    for number in range(12):
        block(fifo_queue, f"key-{number}", waiting=2)

    with django_assert_max_num_queries(35):
        boss.get(BLOCKED)


def act(client, action, *jobs):
    return choose(client, action, *jobs, url=BLOCKED)


def test_a_preview_says_what_runs_next(boss, fifo_queue):
    blocker, waiting = block(fifo_queue, "ada", waiting=2)

    assert f"then #{waiting[0].seq} runs; 2 waiting" in read(act(boss, "skip_keys", blocker)).text
    assert f"if it succeeds, #{waiting[0].seq} runs" in read(act(boss, "retry_keys", blocker)).text
    assert reread(blocker).state == "failed"


def test_skipped_keys_go_on(boss, fifo_queue):
    first, (next_of_first,) = block(fifo_queue, "ada", waiting=1)
    second, _ = block(fifo_queue, "ben")
    gone, _ = block(fifo_queue, "gone")
    services.retry(gone)

    response = confirm(boss, act(boss, "skip_keys", first, second, gone), reason="refunded")

    assert [reread(job).state for job in (first, second)] == ["stopped", "stopped"]
    assert reread(next_of_first).hold is None
    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.reason, operation.moved) == ("skip", "boss", "refunded", 3)
    page = read(boss.get(response.url)).text
    assert "ada" in page
    assert "refunded" in page


def test_of_two_operators_one_retries(boss, fifo_queue):  # F70
    blocker, _ = block(fifo_queue, "ada")
    services.retry(blocker)

    response = confirm(boss, act(boss, "retry_keys", blocker))

    assert "refused: it is retry" in read(boss.get(response.url)).text
    assert reread(blocker).retry_limit == blocker.retry_limit + 1


def test_all_blocked_keys_of_a_queue(boss, fifo_queue):
    other = QueueFactory(policy="key_strict_fifo", name="other")
    meant = [block(fifo_queue, f"key-{number}")[0] for number in range(3)]
    spared, _ = block(other, "x")
    asked = choose(boss, "retry_keys", meant[0], across=1, url=f"{BLOCKED}?queue={fifo_queue.name}")

    response = confirm(boss, asked)
    boss.post(response.url.replace("change/", "advance/"))

    assert {reread(job).state for job in meant} == {"retry"}
    assert reread(spared).state == "failed"


@pytest.mark.parametrize(("delayed_head", "first"), (("pass", 1), ("block", 0)))
def test_what_runs_next_depends_on_who_may_be_passed(fifo_queue, delayed_head, first):
    services.update_queue(fifo_queue.name, delayed_head=delayed_head)
    delayed = JobFactory(queue=fifo_queue, singleton_key="a", hold="until")
    waiting = JobFactory(queue=fifo_queue, singleton_key="a", hold="lane")

    found = behind([(fifo_queue.name, "a")], using="default")[fifo_queue.name, "a"]

    assert found.next is not None
    assert found.next.id == (delayed, waiting)[first].pk
    assert found.number == 2
    assert found.oldest_at == delayed.created_at
