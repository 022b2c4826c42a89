"""How often a verb goes from one file to another: control that bounces between two modules is hard to follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.utils import timezone

import django_jobqueue
from django_jobqueue import services
from django_jobqueue.models import Job, Schedule

PACKAGE = str(Path(django_jobqueue.__file__).parent)


def crossings(verb: Callable[[], Any]) -> tuple[int, Any]:
    """How many calls enter another file of the package than the call before, and what the verb returned."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = verb()
    finally:
        sys.setprofile(before)
    return sum(file != last for last, file in pairwise(files)), result


@pytest.mark.django_db(transaction=True)
def test_the_walks_of_the_verbs_are_short():
    queue = services.create_queue("orders", policy="key_strict_fifo", retry_limit=1).name
    for _ in range(7):  # until the statements are prepared, and what a process remembers is known
        services.send(queue, {"n": 0}, singleton_key="warm")
        services.complete(services.fetch(queue)[0])
    Job.objects.all().delete()
    services.create_queue("slots")
    services.create_schedule("each minute", "slots", "* * * * *")
    services.send_due()
    Schedule.objects.update(next_at=timezone.now().replace(second=0, microsecond=0))
    walks = {}

    walks["send"], _ = crossings(lambda: services.send(queue, {"n": 1}, singleton_key="a"))
    services.send_many(queue, [{"data": {"n": n}, "singleton_key": "a"} for n in (2, 3, 4)])
    walks["fetch"], [job] = crossings(lambda: services.fetch(queue, 10, worker="w"))
    walks["finish"], finished = crossings(lambda: services.finish_many([(job, {"ok": 1})], hand_over=True, worker="w"))
    walks["fail"], _ = crossings(lambda: services.fail(finished.next[0], "boom"))
    [again] = services.fetch(queue, 10)
    services.fail(again, "boom")
    walks["skip"], _ = crossings(lambda: services.skip(again.pk, reason="walk", operator="walk"))
    walks["slot"], sent = crossings(services.send_due)

    assert sent == 1
    most = {"send": 10, "fetch": 22, "finish": 16, "fail": 20, "skip": 24, "slot": 30}
    assert {verb: number for verb, number in walks.items() if number > most[verb]} == {}
