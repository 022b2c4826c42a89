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

    ``next_at`` is the first slot that has not been handled. It is empty while the schedule is off, and for a moment
    after ``update()`` changed the cron line, the time zone or ``enabled``: the next housekeeping process then sets it.
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
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["name"]
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        permissions: ClassVar = [("run_schedule", "Can run a schedule now")]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the row, and ``next_at`` if the cron line, the time zone or ``enabled`` has changed.

        Otherwise ``next_at`` is not written, because a housekeeping process may have moved it since this object was
        loaded. Raises ``InvalidOption`` for a cron line that is not valid or never fires, unless the schedule is off.
        """
        names = kwargs.get("update_fields")
        if names is not None and TIMING.isdisjoint(names):
            super().save(*args, **kwargs)
            return
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        now = _now(using)
        first = self._first_slot(now)
        if self._state.adding:
            self.next_at = first
            super().save(*args, **kwargs)
            return
        unchanged = When(**{name: self._value(name) for name in TIMING}, next_at__isnull=False, then=F("next_at"))
        unsaved: Any = Case(unchanged, default=Value(first, models.DateTimeField()))
        self.next_at, self.updated_at = unsaved, now
        kwargs["update_fields"] = {*(self._written() if names is None else names), "next_at", "updated_at"}
        super().save(*args, **kwargs)
        self.refresh_from_db(using=using, fields=["next_at"])

    @property
    def description(self) -> str:
        """The cron line in English; the line itself if it is not valid."""
        try:
            first_slot(self.cron, self.timezone, clock.now())
        except InvalidOption:
            return self.cron
        return describe(self.cron, self.timezone)

    @property
    def problem(self) -> str:
        """Why it cannot send its jobs; empty if it can."""
        try:
            self.check_options()
        except JobQueueError as error:
            return str(error)
        return ""

    def next_slots(self, count: int = 5) -> list[datetime]:
        """The next slots in local time, also if the schedule is off; none if its cron line is not valid."""
        try:
            first_slot(self.cron, self.timezone, clock.now())
        except InvalidOption:
            return []
        return next_slots(self.cron, self.timezone, clock.now(), count)

    def check_options(self) -> dict[str, Any]:
        """Its options as the verbs take them. Raises the error with which a verb would refuse them."""
        options = self._given_options()
        cleaned = clean_schedule_options({name: self._value(name) for name in _PLAIN} | options)
        if self.queue_id is not None:  # otherwise the form reports it
            self._check_queue(cleaned["singleton_key"])
        return cleaned

    def job_options(self) -> dict[str, Any]:
        """The options of its jobs. Raises ``InvalidOption`` for one that is wrong, and for a wrong ``catch_up``.

        The rest is not checked here, because a send checks it.
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
        known = self._state.fields_cache  # of a list, whose queues were read by one statement
        queue = (
            known["queue"] if "queue" in known else Queue.objects.using(self._state.db).filter(pk=self.queue_id).first()
        )
        if queue is None:
            raise QueueNotFound(self.queue_id)
        if queue.is_ordered and not singleton_key:
            raise KeyRequired(self.queue_id)

    def clean(self) -> None:
        """For forms: the error of a verb becomes an error of the field that is wrong."""
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
        """The value of this column, or its default if the object is new and the database sets it."""
        value = getattr(self, name)
        return schedule_defaults()[name] if isinstance(value, DatabaseDefault) else value


def _now(using: str) -> datetime:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


class ScheduleRun(models.Model):
    """One slot of a schedule, and the job that was sent. The row ensures that several workers send one job.

    ``job_id`` is null if the queue was paused, its policy allowed no other job, or the options were refused.
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
        required_db_vendor = "postgresql"
        ordering: ClassVar = ["-slot"]
        verbose_name = _("schedule run")
        verbose_name_plural = _("schedule runs")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["schedule", "slot"], name="jobqueue_schedule_run_one_per_slot"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.slot}"
