"""No page of the admin and no subcommand shows a planted secret, wherever a job holds it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from django_jobqueue import handlers, services
from django_jobqueue.models import Job, Operation
from django_jobqueue.states import JobState
from tests.commands.calling import jobs
from tests.factories import JobFactory

SECRET = "hunter2"
DATA = {
    "users": [{"name": "ada", "pwd": SECRET, "headers": [["Cookie", f"id={SECRET}"]]}],
    "db": f"postgres://ada:{SECRET}@db/shop",
    "private_key": {"pem": [SECRET]},
    "raw": f"Accept: x\nAuthorization: Bearer {SECRET}\npasswd={SECRET}&a=b",
    "body": f'{{"passphrase": "{SECRET}"}}',
}
ERROR = (
    'Traceback (most recent call last):\n  File "shop.py", line 7, in charge\n    login(user, given)\n'
    f"ValueError: login(password='{SECRET}') at https://ada:{SECRET}@bank.example.com?token={SECRET}"
)
LINK = re.compile(r'href="((?:/admin/jobqueue/|\?)[^"#]*)"')
MOST_PAGES = 150


@pytest.fixture
def planted(fifo_queue, queue) -> Job:
    """A failed job with the secret in everything that a handler or a sender can write."""
    job = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="ada", data=DATA, error=ERROR)
    attempt = {"attempt": 1, "outcome": "failed", "error": ERROR, "worker": "w"}
    everything = {"output": DATA, "attempts": [attempt], "note": f"token={SECRET}", "progress_text": f"token={SECRET}"}
    Job.objects.filter(pk=job.pk).update(**everything, fingerprint="f1", carried={"token": SECRET})
    JobFactory(queue=fifo_queue, singleton_key="ada", data=DATA)
    services.create_schedule("nightly", queue=queue.name, cron="* * * * *", data=DATA)
    return Job.objects.get(pk=job.pk)


def pages(client: Client) -> Iterator[tuple[str, str]]:
    """The pages below our index, each once, and their text."""
    waiting, seen = ["/admin/jobqueue/"], {"/admin/jobqueue/"}
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.pop(0)
        answer = client.get(path, follow=True)
        if answer.status_code != 200:
            continue
        text = answer.content.decode()
        yield path, text
        for link in LINK.findall(text):
            target = (link if link.startswith("/") else path.split("?")[0] + link).replace("&amp;", "&")
            if target not in seen and not re.search(r"[?&](o|p|e|_facets)=", target):
                seen.add(target)
                waiting.append(target)


def test_no_page_shows_a_planted_secret(planted, boss):
    read = dict(pages(boss))

    assert len(read) > 20
    assert any(str(planted.pk) in path for path in read)
    assert [path for path, text in read.items() if SECRET in text] == []
    assert SECRET not in boss.get(f"/admin/jobqueue/job/{planted.pk}/edit/").content.decode()


@pytest.mark.parametrize(
    "words", (("list",), ("show",), ("why",), ("blocked",), ("schedules",), ("doctor",), ("operations",), ("alerts",))
)
@pytest.mark.parametrize("form", ((), ("--json",)), ids=("text", "json"))
def test_no_subcommand_prints_a_planted_secret(planted, words, form, settings):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"mail": ["ops@example.com"]}}
    services.send_alerts()

    said = jobs(*words, *([planted.pk] if words[0] in ("show", "why") else []), *form)

    assert SECRET not in said.out + said.error


def test_positional_arguments_of_a_task_are_hidden_in_a_process_that_has_not_imported_it(queue, boss):
    def login(user: str, password: str) -> None: ...

    job = JobFactory(queue=queue, name="late", data={"args": ["ada", SECRET], "kwargs": {}})
    with handlers.registry.restored(empty=True):
        handler: Any = handlers.Handler(login, queue=queue.name, name="late")
        handler.positional = ("user", "password")
        handlers.register(handler)

        text = boss.get(f"/admin/jobqueue/job/{job.pk}/change/").content.decode()

    assert "ada" in text
    assert SECRET not in text


def test_recorded_edits_are_shown_without_secrets(planted, boss):
    operation = Operation.objects.create(
        verb="edit", operator="olga", selection={}, cursor={"edits": {str(planted.pk): {"before": DATA, "after": DATA}}}
    )

    assert SECRET not in boss.get(f"/admin/jobqueue/operation/{operation.pk}/change/").content.decode()
