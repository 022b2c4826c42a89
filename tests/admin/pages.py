"""URLs of the admin's pages, and a parser of their content."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.urls import reverse

JOBS, BLOCKED, OPERATIONS = (f"/admin/jobqueue/{name}/" for name in ("job", "blockedkey", "operation"))


def job_url(job: Any) -> str:
    return reverse("admin:jobqueue_job_change", args=[job.pk])


def act_url(job: Any, verb: str) -> str:
    return reverse("admin:jobqueue_job_act", args=[job.pk, verb])


def choose(client: Any, action: str, *jobs: Any, across: int = 0, url: str = JOBS, **more: Any) -> Any:
    """The page that asks for confirmation, after an action was chosen in a list."""
    given = {"action": action, "_selected_action": [str(job.pk) for job in jobs], "index": 0, "select_across": across}
    return client.get(client.post(url, given | more).url)


def confirm(client: Any, shown: Any, **more: Any) -> Any:
    """What follows when the form of that page is sent."""
    return client.post(shown.request["PATH_INFO"], {**hidden(shown), "reason": "because", **more})


def hidden(shown: Any) -> dict[str, Any]:
    """The hidden fields of a page."""
    fields: dict[str, Any] = {}
    for tag, given in read(shown).tags:
        if tag == "input" and given.get("type") == "hidden" and given.get("name") != "csrfmiddlewaretoken":
            fields.setdefault(str(given["name"]), []).append(given.get("value") or "")
    return fields


def edit_url(job: Any) -> str:
    return reverse("admin:jobqueue_job_edit", args=[job.pk])


def addresses(ids: dict[str, UUID | str], site: admin.AdminSite = admin.site) -> list[str]:
    """Every URL of our pages; ``ids`` has the row of each model to use."""
    found = []
    for model, screen in site._registry.items():
        if model._meta.app_label != "jobqueue":
            continue
        for pattern in screen.get_urls():
            if not getattr(pattern, "name", None):
                continue
            given = {
                name: "retry" if name == "verb" else ids[str(model._meta.model_name)]
                for name in pattern.pattern.converters
            }
            found.append(reverse(f"admin:{pattern.name}", kwargs=given, current_app=site.name))
    return sorted(set(found))


class Reader(HTMLParser):
    """A page as a browser parses it: its tags and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inline_scripts = 0
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._inside in ("script", "style") and data.strip():
            self.inline_scripts += 1

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def read(response: Any) -> Reader:
    reader = Reader()
    reader.feed(response.content.decode())
    return reader
