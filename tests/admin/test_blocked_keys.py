"""Blocked keys: the list, the waiting jobs, retry and skip."""

from __future__ import annotations

import re

import pytest

from django_jobqueue import services
from django_jobqueue.admin.blocked_keys import BlockedKeyAdmin
from django_jobqueue.models import Operation
from django_jobqueue.services.inspect.lanes import behind
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, act_url, choose, confirm, hidden, job_url, read
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

    with django_assert_max_num_queries(20):
        boss.get(BLOCKED)


def test_the_latest_blocked_come_first_if_the_column_is_turned(boss, fifo_queue):
    for hours, key in ((1, "a"), (3, "b"), (2, "c")):
        block(fifo_queue, key, finalized_at=ago(hours=hours))

    turned = boss.get(BLOCKED).context["cl"].turned

    assert keys(boss, f"o={turned}") == ["a", "c", "b"]
    assert keys(boss, "o=1") == ["b", "c", "a"]  # no index has the order of another column


def test_the_beginning_of_a_key_is_no_pattern(boss, fifo_queue):
    block(fifo_queue, "50%")
    block(fifo_queue, "500")

    assert keys(boss, "q=50%25") == ["50%"]


def test_each_row_has_buttons_for_what_the_user_may_do(login, fifo_queue):
    blocker, _ = block(fifo_queue, "ada")

    page = login("view_job", "retry_job").get(BLOCKED).content.decode()

    assert act_url(blocker, "retry") in page
    assert act_url(blocker, "skip") not in page


def test_active_filters_are_chips_that_can_be_removed(boss, fifo_queue):
    block(fifo_queue, "ada")

    chips = boss.get(f"{BLOCKED}?queue={fifo_queue.name}&q=a").context["cl"].chips

    assert [(str(chip.name), chip.value, chip.without) for chip in chips] == [
        ("search", "a", f"?queue={fifo_queue.name}"),
        ("queue", fifo_queue.name, "?q=a"),
    ]


def test_grouped_by_queue_and_error_with_the_jobs_that_wait(boss, fifo_queue):
    other = QueueFactory(policy="key_strict_fifo", name="other")
    first, _ = block(fifo_queue, "a", waiting=2, fingerprint="f", error="ShopError: no", finalized_at=ago(hours=2))
    block(fifo_queue, "b", waiting=1, fingerprint="f", error="ShopError: no")
    block(fifo_queue, "c", fingerprint="g", error="KeyError: x")
    block(other, "d", fingerprint="f", error="ShopError: no")

    rows = boss.get(f"{BLOCKED}?by=error").context["rows"]

    found = {(row.group.queue, row.error): (row.number, row.behind) for row in rows}
    assert found == {
        (fifo_queue.name, "ShopError: no"): ("2", "3"),
        (fifo_queue.name, "KeyError: x"): ("1", "0"),
        ("other", "ShopError: no"): ("1", "0"),
    }
    assert rows[0].example == first
    only = boss.get(f"{BLOCKED}?by=error&queue=other").context["rows"]
    assert [row.group.queue for row in only] == ["other"]


def test_a_group_of_many_keys_says_that_there_are_more(boss, fifo_queue, monkeypatch):
    for module in ("services.inspect.blocked", "admin.blocked_groups"):
        monkeypatch.setattr(f"django_jobqueue.{module}.MANY", 3)
    for number in range(5):
        block(fifo_queue, f"key-{number}", fingerprint="f")

    assert boss.get(f"{BLOCKED}?by=error").context["rows"][0].number == "3+"


@pytest.mark.django_db(transaction=True)
def test_all_selected_says_until_when_they_failed_and_takes_no_later_ones(boss, fifo_queue, monkeypatch):
    monkeypatch.setattr(BlockedKeyAdmin, "list_per_page", 2)
    shown = [block(fifo_queue, f"key-{number}")[0] for number in range(3)]
    page = boss.get(BLOCKED)
    late, _ = block(fifo_queue, "late")

    assert re.search(r"Selected: 3 that failed until \d\d:\d\d:\d\d", read(page).text)
    preview = act(boss, "retry_keys", shown[0], across=1, shown=hidden(page)["shown"])
    assert "All 3 jobs" in read(preview).text
    confirm(boss, preview)
    operation = services.advance_operation(Operation.objects.get())
    assert (operation.moved, operation.details["came_later"]) == (3, 1)
    assert reread(late).state == JobState.FAILED


def act(client, action, *jobs, **more):
    return choose(client, action, *jobs, url=BLOCKED, **more)


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
