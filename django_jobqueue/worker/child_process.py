"""A child process as its supervisor sees it: through its exit code and the memory they share."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from ..conf import Settings
from ..engine.workers import Running
from ..timings import KILL_AFTER_SECONDS
from . import sessions
from .child import EXIT_DONE, EXIT_GRACE, EXIT_OVERDUE, EXIT_REPLACE
from .messages import ChildEnded, ChildOrder, ChildStarted
from .slots import RunningSlot, Slots

logger = logging.getLogger("django_jobqueue.worker")

HANG_SECONDS = 2 * sessions.STATEMENT_SECONDS  # longer than any statement of a child may take
OUR_EXITS = {
    EXIT_DONE: "has stopped",
    EXIT_REPLACE: "was replaced",
    EXIT_OVERDUE: "was replaced because a handler did not stop",
    EXIT_GRACE: "has stopped; the grace period was over",
}


@dataclass
class ChildProcess:
    """A child that runs, or has ended a moment ago."""

    number: int
    incarnation: UUID
    name: str
    pid: int
    control: int  # a pipe for orders; the child exits when it is closed, because the supervisor has ended
    slots: Slots
    started_at: float
    orders: int = 0  # how many orders it was sent
    killed_because: str = ""  # why the supervisor killed it
    frozen_since: float | None = None
    suspicious: dict[Running, float] = field(default_factory=dict)  # overdue attempts of the last check, with deadlines

    def started(self, queues: list[str]) -> ChildStarted:
        return ChildStarted(self.number, self.incarnation, self.name, self.pid, queues, bool(self.slots.renewed_at))

    def send(self, order: ChildOrder) -> None:
        with suppress(OSError):  # it may have ended already
            os.write(self.control, order.value)

    def was_useful(self, now: float) -> bool:
        """Whether it ran for some time or finished a job, so that its successor may start at once."""
        return now - self.started_at > 10 or any(self.slots.jobs[:2])

    def ended(self, code: int, now: float) -> ChildEnded:
        """How it ended, and which of its jobs are charged for it."""
        running = self.slots.running()
        overdue = [slot.attempt for slot in running if now > slot.deadline]
        others = [slot.attempt for slot in running if now <= slot.deadline]
        if self.killed_because or (code in OUR_EXITS and self.slots.exit_code == code):
            how, crashed = self.killed_because or OUR_EXITS[code], []
        else:
            how = f"died (signal {-code})" if code < 0 else f"left without reporting (exit code {code})"
            crashed, overdue = others + overdue, []
            logger.error(
                "child ended unexpectedly: %s pid %d %s; jobs in a handler: %d",
                self.name,
                self.pid,
                how,
                len(crashed),
                extra={"worker": self.name, "pid": self.pid, "how": how, "jobs": len(crashed)},
            )
        return ChildEnded(self.incarnation, self.name, how, crashed, overdue)

    def fault(self, now: float, settings: Settings) -> str:
        """Why it must be killed: it hangs or has lost contact with the database. Empty if it is healthy."""
        fence, slots = settings.WORKER_FENCE_SECONDS, self.slots
        if self.frozen_since is not None and now - self.frozen_since > fence:
            return "was frozen"
        running, limit = slots.running(), settings.EXPIRE_GRACE_SECONDS + KILL_AFTER_SECONDS
        hangs = now - slots.turned_at > fence  # even without jobs: it waits for ever for an answer
        if slots.renewed_at and slots.seconds_since_renewal() > fence and (running or slots.jobs[2] or hangs):
            return "lost contact with the database; its handlers were stopped"
        if not running and slots.turned_at and now - slots.turned_at > HANG_SECONDS:
            return "hung"
        if self._saw_twice([slot for slot in running if now > slot.deadline + limit]):
            return "was replaced because a handler did not stop"
        return ""

    def _saw_twice(self, overdue: list[RunningSlot]) -> bool:
        """Whether a slot was overdue at the last check too: a single check may read a slot while it is written."""
        before, self.suspicious = self.suspicious, {slot.attempt: slot.deadline for slot in overdue}
        return any(before.get(slot.attempt) == slot.deadline for slot in overdue)
