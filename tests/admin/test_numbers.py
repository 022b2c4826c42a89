"""The number of a job, such as #154, leads to the job; an id that does not exist is named, and of what it is none."""

from __future__ import annotations

import pytest
from django.urls import reverse

from django_jobqueue import services
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, act_url, edit_url, job_url, read
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def job(fifo_queue):
    return JobFactory(queue=fifo_queue, singleton_key="ada", state=JobState.FAILED)


def page_with(id, model="job"):
    return reverse(f"admin:jobqueue_{model}_change", args=[id])


@pytest.mark.parametrize("model", ("job", "blockedkey", "failuregroup"))
def test_a_page_by_number_leads_to_the_job(boss, job, model):
    assert boss.get(page_with(job.seq, model), follow=True).redirect_chain[-1] == (job_url(job), 302)


def test_the_pages_of_a_job_are_found_by_its_number(boss, job):
    for url in (act_url(job, "retry"), edit_url(job)):
        assert f"#{job.seq}" in read(boss.get(url.replace(str(job.pk), str(job.seq)))).text


@pytest.mark.parametrize("page", (JOBS, BLOCKED))
def test_a_search_for_a_number_leads_to_the_job(boss, job, page):
    answer = boss.get(page, {"q": f" #{job.seq} "})

    assert (answer.status_code, answer.headers["Location"]) == (302, job_url(job))


@pytest.mark.parametrize("page", (JOBS, BLOCKED))
def test_a_search_for_digits_names_the_job_and_lists_the_keys(boss, job, fifo_queue, page):
    other = JobFactory(queue=fifo_queue, singleton_key=f"{job.seq}-order", state=JobState.FAILED)

    answer = read(boss.get(page, {"q": str(job.seq)}))

    assert ("a", {"href": job_url(job)}) in answer.tags
    assert f"#{job.seq} orders: failed" in answer.text
    assert f"{job.seq}-order" in answer.text
    assert f"#{other.seq}" in answer.text


def test_a_number_that_no_job_has_is_named(boss, job):
    assert "No job has the number 999999." in read(boss.get(JOBS, {"q": "#999999"})).text
    assert "There is no job #999999: it may" in read(boss.get(page_with(999999), follow=True)).text
    assert "999999." not in read(boss.get(JOBS, {"q": "999999"})).text  # may be the beginning of a key


@pytest.mark.parametrize(
    ("model", "name"),
    (
        ("job", "job"),
        ("blockedkey", "blocked key"),
        ("failuregroup", "failure"),
        ("queue", "queue"),
        ("operation", "operation"),
        ("schedule", "schedule"),
        ("report", "report"),
    ),
)
def test_an_id_that_does_not_exist_is_named(boss, model, name):
    for id in ("non_sense", "01900000-0000-7000-8000-000000000000"):
        page = boss.get(page_with(id, model), follow=True)
        assert page.redirect_chain == [(reverse(f"admin:jobqueue_{model}_changelist"), 302)]
        assert f"There is no {name} {id}: it may have been deleted." in read(page).text


@pytest.mark.parametrize("model", ("job", "blockedkey", "failuregroup", "queue", "operation", "schedule", "report"))
def test_who_may_not_see_a_page_is_not_told_what_exists(login, job, model):
    assert login().get(page_with(job.seq, model)).status_code == 403


def test_a_number_needs_a_search_of_someone_who_may_see_jobs(login, job):
    assert login().get(JOBS, {"q": f"#{job.seq}"}).status_code == 403
    assert services.find_job(job.seq) == job
