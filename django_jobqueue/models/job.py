from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Self

from django.db import DEFAULT_DB_ALIAS, models
from django.db.models import F, Q
from django.db.models.base import ModelState
from django.db.models.lookups import LessThanOrEqual
from django.utils.translation import gettext_lazy as _

from ..claims import Claim
from ..expressions import (
    CurrentSeq,
    CurrentXid,
    EmptyJsonList,
    EmptyTextList,
    NextSeq,
    StatementTimestamp,
    column_size,
)
from ..identifiers import uuid7
from ..options import QUEUE_DEFAULTS
from ..policies import LANED, ONE_RUNNING, ORDERED, QueuePolicy
from ..postgresql import BrinIndex, GinIndex, ListField
from ..querysets import JobQuerySet
from ..states import (
    BLOCKING,
    DEAD,
    ELIGIBLE,
    FINAL,
    OCCUPIED,
    RETRYING,
    RUNNING,
    FailureReason,
    Hold,
    JobState,
)
from ..text import MAX_QUEUE_NAME

MAX_STORED_BYTES = 64 * 1024 * 1024  # a constraint of the table, larger than any JOBQUEUE["MAX_DATA_BYTES"]


def _among(states: frozenset[Any]) -> Q:
    return Q(state__in=sorted(states))


class Job(models.Model):
    """One row: data to be handled in a queue.

    The table is partitioned by queue, so its primary key in the database is (id, queue); for Django it is the id.

    Every attempt writes a new version of the row. So columns that are rarely set are null, and inherited options have
    no CHECK constraints: the queue and the verbs have checked them. For each new version PostgreSQL compares all
    columns of the indexes, and reads over the columns before them. So the columns of indexes come first, and among them
    those of a fixed width. Columns of indexes have the collation C, so that an upgrade of the system's locales does not
    change their order.
    """

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    # The order of sends. ``position`` must come after ``seq``: its default is the number that ``seq`` was given.
    seq = models.BigIntegerField(_("sequence number"), db_default=NextSeq(), editable=False)
    position = models.BigIntegerField(_("position"), db_default=CurrentSeq(), editable=False)
    created_at = models.DateTimeField(_("created at"), db_default=StatementTimestamp(), editable=False)
    start_after = models.DateTimeField(_("start after"), db_default=StatementTimestamp())
    priority = models.IntegerField(_("priority"), db_default=0)

    queue = models.ForeignKey(
        "jobqueue.Queue",
        verbose_name=_("queue"),
        on_delete=models.CASCADE,
        db_constraint=False,  # no lookup on the hot path
        db_index=False,  # the indexes begin with the queue, or do not need it
        related_name="jobs",
    )
    state = models.CharField(_("state"), max_length=20, choices=JobState, db_default=JobState.CREATED, editable=False)
    policy = models.CharField(
        _("policy"), max_length=20, choices=QueuePolicy, db_default=QueuePolicy.STANDARD, editable=False
    )
    singleton_key = models.CharField(_("singleton key"), max_length=255, db_collation="C", blank=True, db_default="")
    group_key = models.CharField(_("group key"), max_length=255, db_collation="C", blank=True, db_default="")
    assignee = models.CharField(
        _("worker"), max_length=255, db_collation="C", blank=True, db_default="", editable=False
    )
    tags = ListField(models.TextField(), verbose_name=_("tags"), blank=True, db_default=EmptyTextList())
    fingerprint = models.CharField(
        _("fingerprint"), max_length=40, db_collation="C", blank=True, db_default="", editable=False
    )
    hold = models.CharField(
        _("hold"), max_length=5, db_collation="C", choices=Hold, null=True, blank=True, editable=False
    )
    throttle_slot = models.CharField(max_length=40, null=True, blank=True, editable=False)
    lease_until = models.DateTimeField(_("leased until"), null=True, blank=True, editable=False)
    delete_at = models.DateTimeField(_("to be deleted at"), null=True, blank=True, editable=False)
    finalized_at = models.DateTimeField(_("finalized at"), null=True, blank=True, editable=False)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True, editable=False)
    attempt_finished_at = models.DateTimeField(_("attempt ended at"), null=True, blank=True, editable=False)

    # The columns below are in no index.
    sent_xid = models.BigIntegerField(_("sender's transaction"), db_default=CurrentXid(), editable=False)
    attempt = models.IntegerField(_("attempt"), db_default=0, editable=False)
    retry_count = models.IntegerField(_("retry count"), db_default=0, editable=False)
    retry_limit = models.IntegerField(_("retry limit"), null=True, blank=True, db_default=QUEUE_DEFAULTS["retry_limit"])
    retry_delay = models.IntegerField(_("retry delay (s)"), db_default=QUEUE_DEFAULTS["retry_delay"])
    retry_delay_max = models.IntegerField(_("longest retry delay (s)"), null=True, blank=True)
    expire_in_seconds = models.IntegerField(_("expires in (s)"), db_default=QUEUE_DEFAULTS["expire_in_seconds"])
    heartbeat_seconds = models.IntegerField(_("heartbeat (s)"), null=True, blank=True)
    retention_seconds = models.IntegerField(_("keep while waiting (s)"), db_default=QUEUE_DEFAULTS["retention_seconds"])
    delete_after_seconds = models.IntegerField(
        _("keep when finished (s)"), db_default=QUEUE_DEFAULTS["delete_after_seconds"]
    )
    delete_failed_after_seconds = models.IntegerField(
        _("keep when failed (s)"), db_default=QUEUE_DEFAULTS["delete_failed_after_seconds"]
    )
    crashes = models.SmallIntegerField(_("crashes in a row"), db_default=0, editable=False)
    retry_backoff = models.BooleanField(_("retry backoff"), db_default=QUEUE_DEFAULTS["retry_backoff"])

    name = models.CharField(_("handler"), max_length=255, blank=True, db_default="")
    data: Any = models.JSONField(_("data"), null=True, blank=True)

    assigned_at = models.DateTimeField(_("assigned at"), null=True, blank=True, editable=False)
    expire_at = models.DateTimeField(_("expires at"), null=True, blank=True, editable=False)
    heartbeat_at = models.DateTimeField(_("last heartbeat"), null=True, blank=True, editable=False)
    last_retry_at = models.DateTimeField(_("last retry at"), null=True, blank=True, editable=False)
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True, blank=True, editable=False)
    first_start_after = models.DateTimeField(_("first start after"), null=True, blank=True, editable=False)
    claim_xmin = models.BigIntegerField(_("first claim's snapshot"), null=True, blank=True, editable=False)
    incarnation = models.UUIDField(_("worker's incarnation"), null=True, blank=True, editable=False)
    # A random number, compared by every statement that finishes the attempt. See ``django_jobqueue.claims``.
    claim_number = models.BigIntegerField(_("claim number"), null=True, blank=True, editable=False)
    # The transaction that last changed the state without completing the job. It limits the selections of operators.
    moved_xid = models.BigIntegerField(_("transaction of the last change"), null=True, blank=True, editable=False)
    # Claimed by a grouped read: until the job ends, later jobs of its group in the same batch depend on it.
    grouped = models.BooleanField(_("claimed by group"), null=True, blank=True, editable=False)
    progress = models.FloatField(_("progress"), null=True, blank=True, editable=False)
    progress_text = models.CharField(_("progress text"), max_length=255, blank=True, db_default="", editable=False)

    output = models.JSONField(_("output"), null=True, blank=True, editable=False)
    error = models.TextField(_("error"), blank=True, db_default="", editable=False)
    error_summary = models.TextField(_("error in one line"), null=True, blank=True, editable=False)
    reason = models.CharField(
        _("reason"), max_length=20, choices=FailureReason, blank=True, db_default="", editable=False
    )
    note = models.TextField(_("operator's note"), blank=True, db_default="", editable=False)
    attempts = models.JSONField(_("failed attempts"), db_default=EmptyJsonList(), editable=False)

    carried: Any = models.JSONField(_("carried from the sender"), null=True, blank=True, editable=False)
    source_id = models.UUIDField(_("copied from"), null=True, blank=True, editable=False)
    source_queue = models.CharField(
        _("source queue"), max_length=MAX_QUEUE_NAME, blank=True, db_default="", editable=False
    )
    source_key = models.CharField(_("source key"), max_length=255, blank=True, db_default="", editable=False)

    objects = JobQuerySet.as_manager()

    # Not columns, but further facts of a claim. The number of the claim is kept here, because the column may have the
    # number of another claim by now.
    held_number: int | None = None
    leaf: str = ""  # the partition of the row, if known
    ctid: str = "(0,0)"  # the place of the row in the partition after the claim; (0,0) if not known
    handed_over: int = 0  # how many consecutive claims of the lane were handed over
    deadline: float = 0.0  # of the attempt, by the monotonic clock of the worker's machine
    begin_by: float = 0.0  # by the same clock: after this time the claim is verified before the handler starts

    class Meta:
        app_label = "jobqueue"
        required_db_vendor = "postgresql"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        get_latest_by = "seq"
        permissions: ClassVar = [
            ("retry_job", "Can retry jobs"),
            ("skip_job", "Can skip jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("edit_job_data", "Can retry jobs with edited data"),
            ("see_job_data", "Can see data and output of jobs"),
        ]
        indexes: ClassVar = [
            # Read by fetches: only fetchable jobs, in the order of fetching.
            models.Index(
                F("queue"),
                F("priority").desc(),
                F("position"),
                name="jobqueue_job_fetchable",
                condition=_among(ELIGIBLE) & Q(hold=None),
            ),
            # Running jobs by worker, for recovery and expiry.
            models.Index(fields=["assignee", "queue"], name="jobqueue_job_running", condition=_among(RUNNING)),
            models.Index(fields=["queue", "delete_at"], name="jobqueue_job_to_delete", condition=~Q(delete_at=None)),
            models.Index(fields=["queue", "start_after"], name="jobqueue_job_until", condition=Q(hold=Hold.UNTIL)),
            # The lanes. ``hold`` comes before ``seq``, so that a thousand delayed jobs do not hide the head.
            models.Index(
                fields=["queue", "singleton_key", "hold", "seq"],
                name="jobqueue_job_lane",
                condition=Q(policy=ORDERED, state=JobState.CREATED),
            ),
            models.Index(
                fields=["queue", "singleton_key", "start_after"],
                name="jobqueue_job_lane_until",
                condition=Q(policy=ORDERED, hold=Hold.UNTIL),
            ),
            models.Index(
                F("queue"),
                F("singleton_key"),
                F("priority").desc(),
                F("position"),
                name="jobqueue_job_lane_waiting",
                condition=Q(policy__in=sorted(ONE_RUNNING), hold=Hold.LANE),
            ),
            models.Index(
                fields=["queue", "group_key", "seq"],
                name="jobqueue_job_group",
                condition=~Q(group_key="") & _among(OCCUPIED | DEAD),
            ),
            # Not ``_among(RUNNING)``: with it the planner would use the index of all running jobs for each group, once
            # its statistics say that no job is running.
            models.Index(
                fields=["queue", "group_key"],
                name="jobqueue_job_group_running",
                condition=~Q(group_key="") & ~_among(frozenset(JobState) - RUNNING),
            ),
            # Jobs without a group that may keep later ones waiting. The others are found along the fetchable jobs, so a
            # job that succeeds at its first attempt is in no index of groups.
            models.Index(
                fields=["queue", "seq"],
                name="jobqueue_job_no_group_waiting",
                condition=Q(policy=QueuePolicy.STANDARD, group_key="") & (Q(hold=Hold.UNTIL) | _among(RETRYING | DEAD)),
            ),
            models.Index(
                fields=["queue", "lease_until"],
                name="jobqueue_job_leased",
                condition=Q(state=JobState.ACTIVE) & ~Q(lease_until=None),
            ),
            models.Index(
                fields=["queue", "finalized_at"],
                name="jobqueue_job_dead",
                condition=_among(frozenset({JobState.FAILED, JobState.EXPIRED})),
            ),
            models.Index(fields=["fingerprint", "seq"], name="jobqueue_job_fingerprint", condition=~Q(fingerprint="")),
            GinIndex(fields=["tags"], name="jobqueue_job_tags", fastupdate=False, condition=~Q(tags=[])),
            GinIndex(
                fields=["tags"],
                name="jobqueue_job_fetchable_tags",
                fastupdate=False,
                condition=_among(ELIGIBLE) & Q(hold=None) & ~Q(tags=[]),
            ),
            # For ranges of times and numbers in a large table; its cost for a send is too small to measure.
            BrinIndex(
                fields=["seq", "created_at", "started_at", "attempt_finished_at", "finalized_at"],
                name="jobqueue_job_ranges",
                autosummarize=True,
            ),
        ]
        constraints: ClassVar = [
            # Enforces strict FIFO. A fetch never offers a job that would violate it; see docs/explanation/lanes.md.
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_one_blocker_per_key",
                condition=Q(policy=ORDERED) & _among(BLOCKING),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_short_one_waiting",
                condition=Q(policy=QueuePolicy.SHORT, state=JobState.CREATED),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_singleton_one_running",
                condition=Q(policy=QueuePolicy.SINGLETON) & _among(RUNNING),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_stately_one_waiting",
                condition=Q(policy=QueuePolicy.STATELY, state=JobState.CREATED),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_stately_one_retrying",
                condition=Q(policy=QueuePolicy.STATELY) & _among(RETRYING),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_stately_one_running",
                condition=Q(policy=QueuePolicy.STATELY) & _among(RUNNING),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_exclusive_one_unfinished",
                condition=Q(policy=QueuePolicy.EXCLUSIVE) & _among(OCCUPIED),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key"],
                name="jobqueue_job_standard_one_per_key",
                condition=Q(policy=QueuePolicy.STANDARD) & ~Q(singleton_key="") & _among(OCCUPIED),
            ),
            models.UniqueConstraint(
                fields=["queue", "singleton_key", "throttle_slot"],
                name="jobqueue_job_one_per_throttle_slot",
                condition=~Q(throttle_slot=None),
            ),
            models.CheckConstraint(
                condition=~Q(policy=ORDERED) | ~Q(singleton_key=""), name="jobqueue_job_ordered_has_a_key"
            ),
            models.CheckConstraint(
                condition=(_among(FINAL) & Q(finalized_at__isnull=False))
                | (~_among(FINAL) & Q(finalized_at__isnull=True)),
                name="jobqueue_job_final_has_finalized_at",
            ),
            models.CheckConstraint(
                condition=Q(retry_limit=None) | Q(retry_count__lte=F("retry_limit")),
                name="jobqueue_job_retries_within_limit",
            ),
            models.CheckConstraint(condition=Q(hold=None) | _among(ELIGIBLE), name="jobqueue_job_only_waiting_is_held"),
            models.CheckConstraint(
                condition=~Q(hold=Hold.LANE) | Q(policy__in=sorted(LANED)),
                name="jobqueue_job_lane_hold_has_lane",
            ),
            models.CheckConstraint(
                condition=LessThanOrEqual(column_size("data"), MAX_STORED_BYTES),
                name="jobqueue_job_data_size",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue_id} {self.pk}"

    @property
    def claim(self) -> Claim | None:
        """The claim with which this object was fetched; ``None`` if it was only read."""
        kept: Claim | None = self.__dict__.get("_claim")
        if kept is None and self.held_number is not None:
            kept = self.__dict__["_claim"] = Claim(self.id, self.attempt, self.held_number)
        return kept

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        """Read the columns again; the claim with which the job was fetched is kept."""
        _ = self.claim  # built before ``attempt`` is read again
        super().refresh_from_db(*args, **kwargs)

    def result(self, *, timeout: float | timedelta | None = None) -> Any:
        """Wait until the job has ended, and return its output; like :func:`django_jobqueue.services.wait_for`."""
        from ..waiting import wait

        return wait(self.pk, self._state.db or DEFAULT_DB_ALIAS, timeout)

    async def aresult(self, *, timeout: float | timedelta | None = None) -> Any:
        """Like :meth:`result`, for async code."""
        from ..waiting import wait_async

        return await wait_async(self.pk, self._state.db or DEFAULT_DB_ALIAS, timeout)

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of a job of another queue: a dead letter."""
        return self.source_id is not None and self.source_queue != self.queue_id

    @property
    def came_by_group(self) -> bool:
        """Whether this object was returned by a grouped read, without a query."""
        return bool(self.__dict__.get("grouped"))

    @classmethod
    def from_row(
        cls, db: str, names: Sequence[str], row: Sequence[Any], known: Mapping[str, Any] | None = None
    ) -> Self:
        """A job from the row of a frequent statement, and from values that are known without reading them.

        Other columns are deferred. ``Model.__init__`` is not called, because it takes longer than the claim itself.
        """
        job = cls.__new__(cls)
        state = ModelState()
        state.db, state.adding = db, False
        values = job.__dict__
        values.update(known or ())
        values.update(zip(names, row, strict=True))
        values["_state"] = state
        return job
