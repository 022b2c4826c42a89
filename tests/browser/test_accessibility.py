"""No page has a serious problem of accessibility: light, dark and narrow, as axe-core finds them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from django_jobqueue import services
from django_jobqueue.models import Job, Report
from django_jobqueue.states import JobState
from tests.admin.pages import BLOCKED, JOBS, OPERATIONS, act_url, edit_url, job_url
from tests.browser.test_looks import OTHERS, TRACEBACK, attempts, fill_others
from tests.factories import JobFactory

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
CONTRAST = "color-contrast"  # the rule that takes longest, and the only one that a dark page can break
LOOKS = {
    "light": ("light", 1280, {}),
    "dark": ("dark", 1280, {"runOnly": [CONTRAST]}),
    "narrow": ("light", 390, {"rules": {CONTRAST: {"enabled": False}}}),
}
FIND = """options => axe.run(document, {resultTypes: ["violations"], preload: false, ...options})
    .then(found => found.violations.filter(each => ["serious", "critical"].includes(each.impact))
        .flatMap(each => each.nodes.map(
            node => `${each.id}: ${node.html.slice(0, 150)}: ${[...node.any, ...node.all][0]?.message}`)))"""


DATA = {"order": 1, "card": {"holder": "Ada", "token": "tok_1"}, "items": [{"sku": "A-1"}]}


@pytest.fixture(scope="module")
def axe():
    if not AXE.exists():
        pytest.skip("no axe-core here: run npm ci in tests/browser; make test does it if npm is installed")
    return AXE.read_text() + ";null"  # otherwise the browser would return all of it


def test_no_page_has_a_serious_problem(tab, axe, fifo_queue, queue):
    began = timezone.now() - timedelta(hours=1)
    lane = {"queue": fifo_queue, "singleton_key": "ada", "name": "ship"}
    job = JobFactory(
        **lane, state="failed", error=TRACEBACK, attempts=attempts(began, 2), fingerprint="a", tags=["web"], data=DATA
    )
    JobFactory(**lane, hold="lane")
    for state in JobState:
        JobFactory(queue=queue, state=state, progress=0.4 if state == "active" else None, progress_text="4 of 10")
    fill_others(fifo_queue, queue)
    Report.objects.create(jobs=1, page="<!doctype html><title>report</title>")
    operation = services.begin_operation("skip", ids=[job.pk], operator="olga", reason="because")
    services.stop_operation(operation)  # otherwise its page would continue it
    pages = [
        "/admin/",
        *OTHERS.values(),
        JOBS,
        f"{JOBS}?state=dead&tag=web&q=ada",
        f"{JOBS}?text=expired",
        job_url(job),
        job_url(Job.objects.get(state="active")),
        act_url(job, "skip"),
        edit_url(job),
        BLOCKED,
        f"{BLOCKED}?by=error",
        f"/admin/jobqueue/queue/{queue.name}/change/",
        "/admin/jobqueue/queue/add/",
        "/admin/jobqueue/schedule/nightly/change/",
        "/admin/jobqueue/schedule/add/",
        OPERATIONS,
        f"{OPERATIONS}{operation.pk}/change/",
        "/admin/jobqueue/report/",
    ]

    problems = [
        f"{address} {look}: {problem}" for address in pages for look, problem in _problems(tab.open(address), axe)
    ]

    assert problems == []


def _problems(page, axe):
    """Load axe-core once, and run it in each look."""
    page.evaluate(axe)
    for look, (colors, width, options) in LOOKS.items():
        page.emulate_media(color_scheme=colors)
        page.set_viewport_size({"width": width, "height": 844})
        page.evaluate("document.getAnimations().forEach(change => change.finish())")  # links change colour slowly
        for problem in page.evaluate(FIND, options):
            yield look, problem
