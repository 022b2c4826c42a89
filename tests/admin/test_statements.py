"""The pages run few statements: at most 20 each, the session and the user included."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobqueue.models import Job
from tests.admin.pages import BLOCKED, JOBS, act_url, job_url
from tests.admin.test_plans import LISTS, filled  # noqa: F401  # a fixture

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("untouched_table")]
MOST = 20

def test_x(boss, filled):
    for address in [*LISTS, f"{JOBS}?text=broken", f"{JOBS}?text=missing", f"{JOBS}?text=broken&state=dead",f"{JOBS}?text=broken&state=completed&queue=ordered", f"{JOBS}?state=dead&queue=ordered", f"{JOBS}?handler=missing&state=completed",f"{JOBS}?o=1"]+[job_url(Job.objects.filter(state="failed").order_by("seq").last()), job_url(Job.objects.filter(queue="ordered", state="created", hold="lane").order_by("seq").first())]:
        with CaptureQueriesContext(connection) as q:
            assert boss.get(address).status_code == 200
        print(len(q), address)
        if len(q) > 25 and "/job" in address and "change" not in address:
            for x in q: print("    ",x["sql"][:150])
