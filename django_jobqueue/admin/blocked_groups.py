"""Blocked keys by queue and error, as rows of the first page and of the grouped list of blocked keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib.admin.utils import quote

from ..counting import MANY
from ..models import Job
from ..services.inspect.blocked import MOST_BEHIND, BlockedGroup
from .findings import UrlOf
from .wording import many, number, one_line


@dataclass(frozen=True)
class BlockedRow:
    """Blocked keys of a queue with the same error, and the jobs behind them."""

    group: BlockedGroup
    example: Job | None
    url: str  # the list of these keys
    queue_url: str

    @property
    def number(self) -> str:
        return f"{number(min(self.group.keys, MANY))}{'+' if self.group.is_capped else ''}"

    @property
    def behind(self) -> str:
        return many(self.group.behind, MOST_BEHIND)

    @property
    def error(self) -> str:
        return one_line(self.example) if self.example is not None else self.group.fingerprint

    @property
    def is_one(self) -> bool:
        return self.group.keys == 1

    @property
    def is_selectable(self) -> bool:
        """Whether exactly these keys can be selected: the one key by its job, several by their error."""
        return self.example is not None and (self.is_one or bool(self.group.fingerprint))


def rows_of(groups: Iterable[BlockedGroup], using: str, url: UrlOf) -> list[BlockedRow]:
    groups = list(groups)
    jobs = Job.objects.using(using).defer("data", "output", "error", "attempts")
    examples = jobs.in_bulk([group.example for group in groups]) if groups else {}
    return [
        BlockedRow(
            group,
            examples.get(group.example),
            f"{url('blockedkey_changelist')}?{urlencode(_parameters(group))}",
            url("queue_change", quote(group.queue)),
        )
        for group in groups
    ]


def _parameters(group: BlockedGroup) -> dict[str, str]:
    given = {"queue": group.queue, "fingerprint": group.fingerprint}
    return {name: value for name, value in given.items() if value}
