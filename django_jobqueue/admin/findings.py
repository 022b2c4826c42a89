"""What the doctor found, as rows of a page: each with a link to what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.admin.utils import quote
from django.utils.http import urlencode

from ..doctor import Finding

UrlOf = Callable[..., str]  # the URL of one of our pages, by its name

# Which jobs a finding is about: the filters of the list besides the queue.
_JOBS = {
    "no_worker": {"state": "waiting"},
    "no_handler": {"state": "waiting"},
    "overdue_jobs": {"state": "running"},
    "not_archived": {"state": "finished"},
    "not_cleaned_up": {"state": "finished"},
}


def url_of(finding: Finding, url: UrlOf) -> str:
    """The page that shows what the finding is about; empty if there is none."""
    facts: Mapping[str, Any] = finding.facts
    queue = str(facts.get("queue", ""))
    if finding.code in _JOBS:
        handler = {"handler": facts["handler"]} if facts.get("handler") else {}
        return f"{url('job_changelist')}?{urlencode({'queue': queue, **_JOBS[finding.code], **handler})}"
    if finding.code == "dead_letters":
        return url("queue_redrive", quote(queue))
    if finding.code == "blocked_keys":
        return f"{url('blockedkey_changelist')}?{urlencode({'queue': queue})}"
    if finding.code == "stranded_lanes" and facts.get("lanes"):
        lane = facts["lanes"][0]
        return f"{url('job_changelist')}?{urlencode({'queue': lane['queue'], 'key': lane['key']})}"
    if finding.code == "worker_silent":
        return f"{url('job_changelist')}?{urlencode({'worker': facts['worker'], 'state': 'running'})}"
    if "schedule" in facts:
        return url("schedule_change", quote(facts["schedule"]))
    return url("queue_change", quote(queue)) if queue else ""
