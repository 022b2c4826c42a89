"""Reports: listed, linked, and shown as they were created, under a policy that forbids scripts."""

from __future__ import annotations

import pytest

from django_jobqueue.models import Report
from tests.admin.pages import read

pytestmark = pytest.mark.django_db

REPORTS = "/admin/jobqueue/report/"
OVERVIEW = "/admin/jobqueue/"


def page_of(report: Report) -> str:
    return f"{REPORTS}{report.pk}/change/"


def test_the_first_page_links_the_newest_report(boss):
    assert "report about the past" not in boss.get(OVERVIEW).content.decode()
    Report.objects.create(page="old", jobs=1)
    newest = Report.objects.create(page="<h1>new</h1>", jobs=1234)

    text = boss.get(OVERVIEW).content.decode()

    assert page_of(newest) in text
    assert "1234 jobs" in text
    assert boss.get(page_of(newest)).content.decode() == "<h1>new</h1>"


def test_without_reports_the_list_says_how_to_create_one(boss):
    text = boss.get(REPORTS).content.decode()

    assert "jobs analyze" in text
    assert "<h1>Reports</h1>" in text
    assert 'type="submit" value="Search"' not in text, "there is nothing to search by"


def test_they_are_listed_with_what_they_are_about(boss):
    Report.objects.create(page="", jobs=7)
    Report.objects.create(page="", jobs=8, queues="orders, mails")

    text = boss.get(REPORTS).content.decode()

    assert "all queues" in text
    assert "orders, mails" in text


def test_nothing_but_its_own_style_may_happen_in_it(boss):  # F67
    report = Report.objects.create(page="<script>alert(1)</script>", jobs=1)

    policy = boss.get(page_of(report)).headers["Content-Security-Policy"]

    assert policy.split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "frame-ancestors 'none'",
        "sandbox",
    ]


@pytest.mark.parametrize("id", ("0", "x", "9" * 30, "²", "-1", "1%00"))
def test_what_is_no_report_is_not_found(boss, id):
    page = boss.get(f"{REPORTS}{id}/change/", follow=True)

    assert page.redirect_chain == [(REPORTS, 302)]
    assert "There is no report" in read(page).text


@pytest.mark.parametrize(("permissions", "status"), ((("view_job",), 200), (("view_report",), 200), ((), 403)))
def test_who_sees_jobs_sees_their_past_and_others_do_not(login, permissions, status):
    report = Report.objects.create(page="the past", jobs=1)
    client = login(*permissions)

    assert client.get(page_of(report)).status_code == status
    assert client.get(REPORTS).status_code == status
    assert client.post(page_of(report)).status_code == status
    assert client.get(f"{REPORTS}{report.pk}/delete/").status_code in (403, 404)
    assert Report.objects.get().page == "the past"
