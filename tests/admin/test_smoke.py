from __future__ import annotations
import pytest
from django.urls import reverse
from tests.factories import JobFactory
pytestmark = pytest.mark.django_db

def test_pages(boss, fifo_queue, queue):
    a = JobFactory(queue=fifo_queue, singleton_key="a", state="failed", data={"a": 1, "password": "x"})
    b = JobFactory(queue=fifo_queue, singleton_key="a", hold="lane")
    JobFactory(queue=queue, state="completed")
    for u in ["job_changelist", "blockedkey_changelist", "operation_changelist"]:
        r = boss.get(reverse("admin:jobqueue_" + u))
        assert r.status_code == 200, u
        print(r.content.decode()[-6000:])
    for j in (a, b):
        r = boss.get(reverse("admin:jobqueue_job_change", args=[j.pk]))
        assert r.status_code == 200
    r = boss.get(reverse("admin:jobqueue_job_change", args=[a.pk]) + "../edit/")
    for v in ("retry","skip","cancel","delete"):
        assert boss.get(reverse("admin:jobqueue_job_act", args=[a.pk, v])).status_code == 200
    assert boss.get(reverse("admin:jobqueue_job_edit", args=[a.pk])).status_code == 200
    r = boss.post(reverse("admin:jobqueue_blockedkey_changelist"), {"action": "skip_keys", "_selected_action": [str(a.pk)], "index": 0})
    assert r.status_code == 200
    print(r.content.decode()[-3000:])
    r = boss.post(reverse("admin:jobqueue_blockedkey_changelist"), {"action": "skip_keys", "_selected_action": [str(a.pk)], "index": 0, "confirmed": 1, "reason": "x"})
    assert r.status_code == 302, r.content.decode()
    r = boss.get(r.url)
    assert r.status_code == 200
    print(r.content.decode()[-3000:])
    r = boss.post(reverse("admin:jobqueue_job_changelist")+"?state=stopped", {"action": "delete_jobs", "select_across": "1", "index": 0, "confirmed": 1, "_selected_action": [str(a.pk)]})
    assert r.status_code == 302, r.content.decode()
    u = r.url
    r = boss.post(u.replace("change/", "advance/"), headers={"Accept": "application/json"})
    assert r.json() == {"state": "done", "moved": 1, "refused": 0, "percent": 100}
