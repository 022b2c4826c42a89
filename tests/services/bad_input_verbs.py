"""Every verb that takes one job's id, called with nothing else wrong."""

from __future__ import annotations

from collections.abc import Callable

from asgiref.sync import async_to_sync
from django.utils import timezone

from django_jobqueue import services

Verb = Callable[..., object]
BY_ID: dict[str, Verb] = {
    "complete": services.complete,
    "fail": lambda id, **where: services.fail(id, "boom", **where),
    "stop": services.stop,
    "mark_unknown_stopped": services.mark_unknown_stopped,
    "acknowledge_cancellation": lambda id, **where: services.acknowledge_cancellation(id, was_executing=True, **where),
    "give_back": lambda id, **where: services.give_back(id, "drained", **where),
    "retry": services.retry,
    "skip": lambda id, **where: services.skip(id, reason="bad", **where),
    "delete": services.delete,
    "set_visibility": lambda id, **where: services.set_visibility(id, 0, **where),
    "reschedule": lambda id, **where: services.reschedule(id, timezone.now(), **where),
    "get_job": services.get_job,
    "why": services.why,
    "aget_job": async_to_sync(services.aget_job),
}
