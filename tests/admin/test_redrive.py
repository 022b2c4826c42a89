"""Dead letters in the admin: looked at and redriven, and never given to a worker."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_jobqueue import services
from django_jobqueue.models import Job, Operation, Queue
from tests.admin.pages import JOBS, act_url, choose, confirm, job_url, read
from tests.factories import JobFactory, QueueFactory
from tests.past import reread

pytestmark = pytest.mark.django_db
HEALTH = "/admin/jobqueue/maintenance/"


@pytest.fixture
def letters() -> Queue:
    return QueueFactory(name="letters")


@pytest.fixture
def orders(letters) -> Queue:
    return QueueFactory(name="orders", policy="key_strict_fifo", dead_letter=letters, retry_limit=0)


def fail_one(queue: Queue, key: str = "a") -> Job:
    services.send(queue.name, singleton_key=key)
    (job,) = services.fetch(queue.name)
    services.fail(job, f"the card of {key} has expired")
    return job


def page_of(queue) -> str:
    return reverse("admin:jobqueue_queue_redrive", args=[quote(str(queue))])


def post(client, queue, **fields):
    snapshot = client.get(page_of(queue)).context["snapshot"]
    return client.post(page_of(queue), {"snapshot": snapshot, **fields}, follow=True)


def letter_of(job) -> Job:
    return Job.objects.get(queue="letters", source_id=job.pk)


def test_the_page_shows_the_letters_with_their_originals_and_errors(boss, orders, letters):
    job, gone = fail_one(orders), fail_one(orders, "b")
    services.delete(gone.pk)

    response = boss.get(page_of(letters))
    page = read(response).text

    assert "2 dead letters" in page
    assert "the card of a has expired" in page
    assert (f"#{job.seq}" in page, f"#{gone.seq}" in page) == (True, False)
    assert f"{JOBS}?queue=letters" in response.text
    assert "manage.py jobs redrive letters" in page


def test_a_redrive_is_an_operation_with_operator_and_reason(boss, orders, letters):
    job, gone = fail_one(orders), fail_one(orders, "b")
    services.delete(gone.pk)

    page = read(post(boss, letters, reason="cards renewed")).text

    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.reason) == ("redrive", "boss", "cards renewed")
    assert reread(job).state == "retry"
    assert "originals retried: 1; jobs sent again: 1; nothing left to do: 0" in page
    new = Job.objects.get(queue="orders", source_id=gone.pk)
    assert f"#{new.seq}" in page
    assert not Job.objects.in_queue("letters").exists()


def test_the_form_chooses_which_letters_and_where_to(boss, orders, letters):
    other = QueueFactory(name="mails", dead_letter=letters, retry_limit=0)
    QueueFactory(name="repaired")
    fail_one(orders)
    for key in "ab":
        fail_one(other, key)

    post(boss, letters, source_queue="mails", to="repaired", limit="1")

    assert Job.objects.in_queue("repaired").count() == 1
    assert Job.objects.in_queue("letters").count() == 2


@pytest.mark.django_db(transaction=True)
def test_letters_that_come_after_the_page_was_shown_are_left(boss, orders, letters):  # B43
    fail_one(orders)
    snapshot = boss.get(page_of(letters)).context["snapshot"]
    fail_one(orders, "b")

    boss.post(page_of(letters), {"snapshot": snapshot})

    assert Job.objects.in_queue("letters").count() == 1
    assert Operation.objects.get().details["came_later"] == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    (
        ({"to": "nowhere"}, "nowhere"),
        ({"to": "letters"}, "is the queue that the dead letters are in"),
        ({"source_queue": "nowhere"}, "nowhere"),
        ({"limit": "0"}, "greater than or equal to 1"),
        ({"snapshot": "nonsense"}, "snapshot"),
    ),
)
def test_wrong_input_is_shown_in_the_form(boss, orders, letters, fields, error):
    fail_one(orders)

    response = post(boss, letters, **fields)

    assert error in response.text
    assert not Operation.objects.exists()
    assert Job.objects.in_queue("letters").count() == 1


def test_a_redrive_needs_the_permission_to_retry(login, orders, letters):
    fail_one(orders)
    viewer = login("view_job")

    assert "Redrive</" not in viewer.get(page_of(letters)).text
    assert viewer.post(page_of(letters), {"snapshot": services.current_snapshot()}).status_code == 403
    assert login(name="ned").get(page_of(letters)).status_code == 403
    assert Job.objects.in_queue("letters").count() == 1


def test_a_queue_without_dead_letters_says_so(boss, orders):
    response = boss.get(page_of(orders), follow=True)

    assert "keeps no dead letters" in response.text
    assert boss.get(page_of("nowhere")).status_code == 404


def test_only_the_page_of_a_dead_letter_queue_has_the_button(boss, orders, letters):
    def page(queue):
        return boss.get(reverse("admin:jobqueue_queue_change", args=[queue.name])).text

    assert page_of(letters) in page(letters)
    assert "Redrive dead letters" in page(letters)
    assert "Redrive dead letters" not in page(orders)


def test_selected_letters_are_redriven_and_other_jobs_refused(boss, orders):
    letter, plain = letter_of(fail_one(orders)), JobFactory(queue=orders, singleton_key="z")

    shown = choose(boss, "redrive_jobs", letter, plain)
    assert "nothing, because it is no dead letter" in shown.text
    confirm(boss, shown)

    operation = Operation.objects.get()
    assert (operation.verb, operation.moved, operation.refused) == ("redrive", 1, 1)
    assert not Job.objects.filter(pk=letter.pk).exists()


def test_all_jobs_that_match_the_filters_are_only_the_dead_letters(boss, orders):
    job = fail_one(orders)
    JobFactory(queue=orders, singleton_key="z")

    shown = choose(boss, "redrive_jobs", job, across=1, url=f"{JOBS}?state=waiting")

    assert shown.context["number"] == "1"


def test_the_page_of_a_letter_offers_the_redrive_and_says_why_it_waits(boss, orders):
    job = fail_one(orders)
    letter = letter_of(job)

    page = boss.get(job_url(letter)).text
    assert "It is a dead letter" in page
    assert act_url(letter, "redrive") in page
    assert act_url(job, "redrive") not in boss.get(job_url(job)).text

    confirm(boss, boss.get(act_url(letter, "redrive")), reason="")
    assert reread(job).state == "retry"


def test_the_list_of_jobs_can_be_filtered_by_the_source(boss, orders, letters):
    mails = QueueFactory(name="mails", dead_letter=letters, retry_limit=0)
    letter = letter_of(fail_one(orders))
    fail_one(mails)

    rows = boss.get(f"{JOBS}?queue=letters&source_queue=orders").context["cl"].result_list

    assert list(rows) == [letter]


def test_the_first_page_and_health_offer_to_look_and_to_redrive_and_never_a_worker(boss, orders, letters):
    """A worker would run the dead orders again."""
    fail_one(orders)

    first, health = boss.get("/admin/jobqueue/").text, boss.get(HEALTH).text

    for page in (first, health):
        assert page_of(letters) in page
        assert "manage.py jobs list --queue letters" in page
        assert "runjobs --queue letters" not in page
        assert "cancel" not in page.split("dead letter")[1]
    assert "manage.py jobs redrive letters" in health
    assert f"{JOBS}?queue=letters" in health


def test_the_page_has_few_statements_however_many_letters(boss, orders, letters, django_assert_max_num_queries):
    for number in range(12):
        fail_one(orders, f"k{number}")

    with django_assert_max_num_queries(20):
        boss.get(page_of(letters))


def test_a_list_offers_a_redrive_only_for_dead_letters(boss, orders):
    letter = letter_of(fail_one(orders))
    waiting = JobFactory(queue=orders, singleton_key="z")

    page = read(boss.get(JOBS))

    links = [attributes.get("href") or "" for tag, attributes in page.tags if tag == "a"]
    redriving = {link for link in links if link.endswith("/act/redrive/")}
    assert redriving == {f"{JOBS}{letter.pk}/act/redrive/"}
    assert f"{JOBS}{waiting.pk}/act/cancel/" in links
