"""What an alert says: each problem in a sentence, with a link into the admin or a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from django.utils.timezone import localtime

from .counting import MANY
from .log_texts import duration, one_line
from .redaction import redacted_text

MOST_LISTED = 20  # problems in one message


@dataclass(frozen=True, slots=True)
class Notice:
    """A problem to tell, or its end."""

    kind: str
    name: str
    facts: Mapping[str, Any]
    began_at: datetime
    over_at: datetime | None = None

    @property
    def sentence(self) -> str:
        """What is wrong, or what was and for how long."""
        text = _SENTENCES[self.kind](self)
        if self.over_at is None:
            return text
        return f"Over after {duration((self.over_at - self.began_at).total_seconds())}: {text}"

    @property
    def queues(self) -> list[str]:
        return list(self.facts.get("queues", ()))

    @property
    def example(self) -> str:
        """One of the blocked keys."""
        if self.kind != "blocked" or not self.facts.get("job"):
            return ""
        key = redacted_text(one_line(self.facts["key"]))
        return f"For example the key {key!r}: job #{self.facts['number']}, {self.facts['job']}"

    def link(self, admin: str) -> str:
        """The page of the admin that shows the problem."""
        if self.kind == "late":
            page = f"schedule/{quote(_quoted(self.name))}/change/"
        elif self.kind == "stopped":
            page = f"job/?{urlencode({'queue': self.name})}"
        elif self.kind == "test":
            page = ""
        else:
            one = {"queue": self.queues[0]} if len(self.queues) == 1 else {}
            page = f"blockedkey/{'?' if one else ''}{urlencode(one)}"
        return f"{admin.rstrip('/')}/jobqueue/{page}"

    @property
    def command(self) -> str:
        """The command that shows the problem."""
        if self.kind == "late":
            return "manage.py jobs schedules"
        if self.kind in ("stopped", "test"):
            return "manage.py jobs doctor"
        return " ".join(["manage.py jobs blocked", *map(shlex.quote, self.queues[:1] if len(self.queues) == 1 else ())])

    def where(self, admin: str) -> str:
        return self.link(admin) if admin else self.command

    def as_dict(self, admin: str) -> dict[str, Any]:
        """The notice for programs, as JSON types."""
        return {
            "kind": self.kind,
            "name": self.name,
            "status": "over" if self.over_at else "problem",
            "sentence": self.sentence,
            "queues": self.queues,
            "since": self.facts.get("since"),
            "keys": self.facts.get("keys"),
            "waiting": self.facts.get("waiting"),
            "example": self.facts.get("job") or None,
            "link": self.link(admin) if admin else None,
            "command": self.command,
        }


@dataclass(frozen=True, slots=True)
class AlertText:
    """Notices that are told together."""

    notices: Sequence[Notice]
    admin: str = ""  # its URL

    @property
    def ordered(self) -> list[Notice]:
        """What lasts first, the most blocked keys first."""
        return sorted(self.notices, key=lambda each: (each.over_at is not None, -each.facts.get("keys", 0), each.name))

    @property
    def subject(self) -> str:
        """One line for all."""
        first = self.ordered[0].sentence
        if len(self.notices) == 1:
            return first
        over = sum(notice.over_at is not None for notice in self.notices)
        counts = [_number(lasting, "problem")] if (lasting := len(self.notices) - over) else []
        counts += [f"{over:,} over"] if over else []
        return f"{', '.join(counts)}: {first}"

    @property
    def text(self) -> str:
        """One paragraph for each notice."""
        parts = ["\n".join(self._lines(notice)) for notice in self.ordered[:MOST_LISTED]]
        more = len(self.notices) - MOST_LISTED
        return "\n\n".join([*parts, *([f"And {more:,} more."] if more > 0 else [])])

    def _lines(self, notice: Notice) -> list[str]:
        lines = [notice.sentence, "" if notice.over_at else notice.example, notice.where(self.admin)]
        return [line for line in lines if line]


def trial_message(admin: str, now: datetime) -> AlertText:
    """A message that says that it is a test."""
    return AlertText([Notice("test", "", {}, now)], admin)


def _test(notice: Notice) -> str:
    return "This is a test of JOBQUEUE['ALERTS']: messages arrive here"


def _blocked(notice: Notice) -> str:
    facts = notice.facts
    or_more = " or more" if facts["is_capped"] else ""
    keys = f"{facts['keys']:,}{or_more} blocked {'key' if facts['keys'] == 1 else 'keys'}"
    error = f"{facts['errors']:,} more errors, such as {facts['error']}" if facts["errors"] > 1 else facts["error"]
    return f"{keys} in {_names(notice.queues)}{_behind(facts)}, since {_time(facts['since'])}: {error}"


def _behind(facts: Mapping[str, Any]) -> str:
    waiting = facts["waiting"]
    if not waiting:
        return ""
    or_more = "" if facts["counts_all"] and waiting < MANY else " or more"
    return f", {waiting:,}{or_more} {'job waits' if waiting == 1 else 'jobs wait'} behind"


def _stopped(notice: Notice) -> str:
    facts = notice.facts
    why = "no live worker takes its jobs" if facts["has_no_worker"] else "no attempt has begun or ended since"
    return f"Queue {notice.name!r} stands still: {why}, and its next job waits since {_time(facts['since'])}"


def _late(notice: Notice) -> str:
    problem = notice.facts["problem"]
    return f"Schedule {notice.name!r} is late: it was due at {_time(notice.facts['since'])}" + (
        f"; {redacted_text(one_line(problem))}" if problem else ""
    )


_SENTENCES = {"test": _test, "blocked": _blocked, "stopped": _stopped, "late": _late}


def _names(queues: Sequence[str]) -> str:
    shown = ", ".join(map(repr, queues[:3]))
    return shown if len(queues) <= 3 else f"{shown} and {len(queues) - 3} more queues"


def _time(text: str) -> str:
    return f"{localtime(datetime.fromisoformat(text)):%Y-%m-%d %H:%M %Z}".rstrip()


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _quoted(name: str) -> str:
    """A primary key in a URL of the admin."""
    from django.contrib.admin.utils import quote as admin_quote

    return str(admin_quote(name))
