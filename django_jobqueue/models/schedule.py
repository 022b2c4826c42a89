from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.db import connections, models, router
from django.db.models import Case, F, Value, When
from django.db.models.expressions import DatabaseDefault
from django.utils import timezone as clock
from django.utils.translation import gettext_lazy as _

from ..catch_up import CatchUp
from ..cron import MAX_CRON, MAX_TIMEZONE, describe, first_slot, next_slots
from ..exceptions import InvalidData, InvalidOption, JobQueueError, KeyRequired, QueueNotFound
from ..expressions import EmptyTextList, StatementTimestamp
from ..options import MAX_SCHEDULE_NAME, clean_schedule_options, schedule_defaults
from ..postgresql import ListField
from ..querysets import TIMING, ScheduleQuerySet
from .queue import Queue

_DEFAULTS = schedule_defaults()
_PLAIN = ("cron", *(name for name in _DEFAULTS if name != "enabled"))


class Schedule(models.Model):
    """A cron line that sends jobs.

    ``next_at`` is the first slot that no scheduler has handled. It is empty while the schedule is off, and for a
    moment after its cron line, its zone or its being on was changed by ``update()``: then the next scheduler fills it.
    """

    name = models.CharField(_("name"), max_length=MAX_SCHEDULE_NAME, primary_key=True, db_collation="C")
    queue = models.ForeignKey(
        "jobqueue.Queue",
        verbose_name=_("queue"),
        on_delete=models.CASCADE,
        db_constraint=False,
        related_name="schedules",
    )
    cron = models.CharField(_("cron"), max_length=MAX_CRON)
    timezone = models.CharField(_("time zone"), max_length=MAX_TIMEZONE, db_default=_DEFAULTS["timezone"])
    handler = models.CharField(_("handler"), max_length=255, blank=True, db_default="")
    data = models.JSONField(_("data"), null=True, blank=True)
    priority = models.IntegerField(_("priority"), db_default=_DEFAULTS["priority"])
    singleton_key = models.CharField(_("singleton key"), max_length=255, blank=True, db_default="")
    group_key = models.CharField(_("group key"), max_length=255, blank=True, db_default="")
    tags = ListField(models.TextField(), verbose_name=_("tags"), blank=True, db_default=EmptyTextList())
    options = models.JSONField(_("job options"), default=dict, blank=True)
    catch_up = models.CharField(_("catch up"), max_length=4, choices=CatchUp, db_default=_DEFAULTS["catch_up"])
    enabled = models.BooleanField(_("enabled"), db_default=_DEFAULTS["enabled"])
    from_code = models.BooleanField(_("declared in settings"), db_default=False, editable=False)
    next_at = models.DateTimeField(_("next slot"), null=True, blank=True, db_index=True, editable=False)
    last_slot = models.DateTimeField(_("last slot"), null=True, blank=True, editable=False)
    created_at = models.DateTimeField(_("created at"), db_default=StatementTimestamp(), editable=False)
    updated_at = models.DateTimeField(_("updated at"), db_default=StatementTimestamp(), editable=False)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        app_label = "jobqueue"
        ordering: ClassVar = ["name"]
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions: ClassVar = [("run_schedule", "Can run a schedule now")]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the row and, if its cron line, its zone or its being on is new, when it is due next.

        Otherwise that is left as it is in the database, because a scheduler may have moved it since this object was
        loaded. Raises ``InvalidOption`` for a line that makes no sense or never fires, unless the schedule is off.
        """
        given = kwargs.get("update_fields")
        if given is not None and TIMING.isdisjoint(given):
            super().save(*args, **kwargs)
            return
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        now = _now(using)
        first = self._first_slot(now)
        if self._state.adding:
            self.next_at = first
            super().save(*args, **kwargs)
            return
        same = When(**{name: self._value(name) for name in TIMING}, next_at__isnull=False, then=F("next_at"))
        unsaved: Any = Case(same, default=Value(first, models.DateTimeField()))
        self.next_at, self.updated_at = unsaved, now
        kwargs["update_fields"] = {*(self._written() if given is None else given), "next_at", "updated_at"}
        super().save(*args, **kwargs)
        self.refresh_from_db(using=using, fields=["next_at"])

    @property
    def description(self) -> str:
        """What the cron line says, in English; the line itself if it makes no sense."""
        try:
            first_slot(self.cron, self.timezone, clock.now())
        except InvalidOption:
            return self.cron
        return describe(self.cron, self.timezone)

    @property
    def problem(self) -> str:
        """Why it cannot send its jobs, or nothing."""
        try:
            self.check_options()
        except JobQueueError as error:
            return str(error)
        return ""

    def next_slots(self, count: int = 5) -> list[datetime]:
        """When it is due next, or would be if it were on, by the clock of its zone; none if its line makes no sense."""
        try:
            first_slot(self.cron, self.timezone, clock.now())
        except InvalidOption:
            return []
        return next_slots(self.cron, self.timezone, clock.now(), count)

    def check_options(self) -> dict[str, Any]:
        """Its options as the verbs take them, or the error with which a verb would refuse them."""
        options = self._given_options()
        cleaned = clean_schedule_options({name: self._value(name) for name in _PLAIN} | options)
        if self.queue_id is not None:  # else a form says so itself
            self._check_queue(cleaned["singleton_key"])
        return cleaned

    def job_options(self) -> dict[str, Any]:
        """The options of its jobs; ``InvalidOption`` for one that is wrong, or a wrong ``catch_up``.

        The rest is not checked here: a send checks it.
        """
        cleaned = clean_schedule_options({"catch_up": self._value("catch_up")} | self._given_options())
        options: dict[str, Any] = cleaned["options"]
        return options

    def _given_options(self) -> dict[str, Any]:
        options = self._value("options")
        if not isinstance(options, dict):
            raise InvalidOption("options", f"expected a dict, got a value of type {type(options).__name__}")
        if wrong := sorted(set(options) & {*_PLAIN, "queue", "enabled"}):
            raise InvalidOption("options", f"{wrong[0]!r} is not an option of jobs")
        return options

    def _check_queue(self, singleton_key: str) -> None:
        queue = Queue.objects.using(self._state.db).filter(pk=self.queue_id).first()
        if queue is None:
            raise QueueNotFound(self.queue_id)
        if queue.is_ordered and not singleton_key:
            raise KeyRequired(self.queue_id)

    def clean(self) -> None:
        """For forms: what a verb would refuse is refused, beside the field that is wrong."""
        try:
            self.check_options()
        except InvalidData as error:
            raise ValidationError({"data": str(error)}) from error
        except KeyRequired as error:
            raise ValidationError({"singleton_key": str(error)}) from error
        except QueueNotFound as error:
            raise ValidationError({"queue": str(error)}) from error
        except InvalidOption as error:
            field = error.option.partition("[")[0]
            raise ValidationError({field if field in _PLAIN else "options": str(error)}) from error

    def _first_slot(self, now: datetime) -> datetime | None:
        if not self._value("enabled"):
            return None
        self.cron = " ".join(self.cron.split())
        return first_slot(self.cron, self._value("timezone"), now)

    def _written(self) -> Iterable[str]:
        deferred = self.get_deferred_fields()
        fields = (field.name for field in self._meta.concrete_fields if field.attname not in deferred)
        return (name for name in fields if name not in ("name", "last_slot", "created_at"))

    def _value(self, name: str) -> Any:
        """What is or will be in this column, because a new object does not know what the database fills in."""
        value = getattr(self, name)
        return schedule_defaults()[name] if isinstance(value, DatabaseDefault) else value


def _now(using: str) -> datetime:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found


class ScheduleRun(models.Model):
    """One slot of a schedule, and the job it sent: the row that makes five schedulers send one job.

    No job was sent if the queue was paused, its policy's slot taken, or the schedule's options were refused.
    """

    schedule = models.ForeignKey(
        Schedule, verbose_name=_("schedule"), on_delete=models.CASCADE, db_index=False, related_name="runs"
    )
    slot = models.DateTimeField(_("slot"))
    job_id = models.UUIDField(_("job"), null=True, blank=True)
    by_hand = models.BooleanField(_("run by hand"), db_default=False)
    created_at = models.DateTimeField(_("created at"), db_default=StatementTimestamp(), editable=False)

    class Meta:
        app_label = "jobqueue"
        ordering: ClassVar = ["-slot"]
        verbose_name = _("schedule run")
        verbose_name_plural = _("schedule runs")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["schedule", "slot"], name="jobqueue_schedule_run_one_per_slot"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.slot}"
