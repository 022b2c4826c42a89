"""Blocked keys: the blocking job, since when, its error, and how many jobs wait; retry it, or skip it with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from ..counting import MANY, Count
from ..models import BlockedKey, Queue
from ..policies import ORDERED
from ..querysets import BlockedKeyQuerySet
from ..services.inspect.jobs import job_database
from ..services.inspect.lanes import Behind, behind
from ..services.inspect.lists import by_index, count
from . import wording
from .acting import ACTIONS, ActingAdmin, JobAction
from .changelist import SelectionChangeList
from .filters import FingerprintFilter, QueueFilter

QUEUES_READ = 1_000


class OrderedQueueFilter(QueueFilter):
    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        ordered = Queue.objects.using(job_database()).filter(policy=ORDERED)
        return [(name, name) for name in ordered.values_list("name", flat=True)[:200]]


class BlockedChangeList(SelectionChangeList):
    """Longest blocked first. The keys are read queue by queue along an index and merged: no index has all of them."""

    counted: Count

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = str(self.opts.verbose_name_plural).capitalize()

    def get_results(self, request: HttpRequest) -> None:
        self.counted = count(self.queryset)
        self.result_count = min(self.counted.number, MANY)
        self.full_result_count = self.result_count
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = False
        self.paginator = Paginator(range(self.result_count), self.list_per_page)
        self.page_num = min(max(self.page_num, 1), self.paginator.num_pages)
        self.multi_page = self.result_count > self.list_per_page
        ids = by_index(partial(self._page, (self.page_num - 1) * self.list_per_page), using=self.queryset.db)
        by_id = {row.pk: row for row in self.root_queryset.filter(pk__in=ids)}
        self.result_list = with_behind(by_id[id] for id in ids if id in by_id)

    def _page(self, offset: int) -> list[UUID]:
        ordered = Queue.objects.using(self.queryset.db).filter(policy=ORDERED)
        parts = [
            self.queryset.filter(queue=name)
            .order_by("finalized_at", "seq")
            .values_list("pk", "finalized_at", "seq")[: offset + self.list_per_page]
            for name in ordered.values_list("name", flat=True)[:QUEUES_READ]
        ]
        if not parts:
            return []
        merged = parts[0].union(*parts[1:], all=True).order_by("finalized_at", "seq") if len(parts) > 1 else parts[0]
        return [row[0] for row in merged[offset : offset + self.list_per_page]]

    @property
    def has_more_to_select(self) -> bool:
        return self.multi_page

    @property
    def count_text(self) -> str:
        return wording.many(self.counted.number)


def with_behind(rows: Iterable[BlockedKey]) -> list[BlockedKey]:
    """The rows, each with the jobs that wait behind it as ``behind``."""
    keys = list(rows)
    waiting = behind([(row.queue_id, row.singleton_key) for row in keys], using=job_database())
    for row in keys:
        row.behind = waiting[row.queue_id, row.singleton_key]  # type: ignore[attr-defined]
    return keys


@admin.register(BlockedKey)
class BlockedKeyAdmin(ActingAdmin):
    list_display = ("key", "queue_shown", "blocker", "since", "waiting", "next_shown")
    list_display_links = ("key",)
    list_filter = (OrderedQueueFilter, FingerprintFilter)
    look_ups = ("queue", "fingerprint")
    search_field = "key_prefix"
    always: Mapping[str, Any] = MappingProxyType({"blocks_key": True})
    sortable_by = ()
    search_fields = ("singleton_key",)
    search_help_text = _("The beginning of a key, or the number of the blocking job, such as #154.")
    actions = ("retry_keys", "skip_keys")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BlockedChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """All jobs; the selection limits them to those that block a key."""
        return BlockedKeyQuerySet(BlockedKey, using=job_database()).defer("data", "output", "error", "attempts")

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """A blocked key is a job, so the permission to view jobs is enough."""
        return request.user.has_perm("jobqueue.view_job") or super().has_view_permission(request, obj)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Redirect to the page of the blocking job."""
        return self.job_of(request, object_id)

    # ------------------------------------------------------------------------------------------------------ columns

    @admin.display(description=_("key"))
    def key(self, row: BlockedKey) -> str:
        return row.singleton_key

    @admin.display(description=_("queue"))
    def queue_shown(self, row: BlockedKey) -> str:
        return row.queue_id

    @admin.display(description=_("blocked by"))
    def blocker(self, row: BlockedKey) -> SafeString:
        return format_html(
            '{} <span class="jq-error">{}</span>',
            self._job_link(row.pk, row.seq),
            wording.error_line(row) or row.state,
        )

    @admin.display(description=_("since"))
    def since(self, row: BlockedKey) -> str:
        return wording.time_tag(row.finalized_at, ago=True)

    @admin.display(description=_("waiting"))
    def waiting(self, row: BlockedKey) -> str | SafeString:
        """How many jobs wait, and since when the oldest does."""
        jobs = _behind(row)
        if not jobs.number:
            return "0"
        query = urlencode({"queue": row.queue_id, "key": row.singleton_key, "state": "waiting"})
        return format_html(
            '<a href="{}?{}">{}</a> <span class="jq-quiet">{} {}</span>',
            self.url("job_changelist"),
            query,
            wording.many(jobs.number),
            _t("oldest"),
            wording.time_tag(jobs.oldest_at, ago=True),
        )

    def _job_link(self, id: UUID, seq: int) -> SafeString:
        return format_html('<a href="{}">#{}</a>', self.url("job_change", id), seq)

    @admin.display(description=_("runs next"))
    def next_shown(self, row: BlockedKey) -> str | SafeString:
        after = _behind(row).next
        return self._job_link(after.id, after.seq) if after else _t("no job waits")

    # ------------------------------------------------------------------------------------------------------ actions

    @admin.action(description=_("Retry the blocking jobs"), permissions=["retry"])
    def retry_keys(self, request: HttpRequest, queryset: QuerySet[BlockedKey]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["retry"])

    @admin.action(description=_("Skip the blocking jobs with a reason"), permissions=["skip"])
    def skip_keys(self, request: HttpRequest, queryset: QuerySet[BlockedKey]) -> HttpResponse:
        return self.act_on_many(request, queryset, ACTIONS["skip"])

    def preview(self, queryset: QuerySet[Any], act: JobAction) -> dict[str, Any]:
        """Each blocking job, and which job of its key would run next."""
        rows = with_behind(queryset.defer("data", "output", "error", "attempts").order_by("finalized_at", "seq"))
        lines = [{"job": row, "error": wording.error_line(row), "then": _then(row, act)} for row in rows]
        return {"lines": lines, "number": len(lines)}


def _then(row: BlockedKey, act: JobAction) -> str:
    waiting = _behind(row)
    if waiting.next is None:
        return _t("no job waits behind it")
    facts = {"next": f"#{waiting.next.seq}", "number": wording.many(waiting.number)}
    if act.verb == "skip":
        return _t("then #%(next)s runs; %(number)s waiting") % {**facts, "next": waiting.next.seq}
    return _t("if it succeeds, #%(next)s runs; %(number)s waiting") % {**facts, "next": waiting.next.seq}


def _behind(row: BlockedKey) -> Behind:
    waiting: Behind = row.behind  # type: ignore[attr-defined]
    return waiting
