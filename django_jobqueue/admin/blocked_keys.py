"""Blocked keys: the blocking job, since when, its error, and how many jobs wait; retry it, or skip it with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from ..counting import MANY
from ..models import BlockedKey, Queue
from ..policies import ORDERED
from ..querysets import BlockedKeyQuerySet
from ..selection import Selection
from ..services.inspect.blocked import Filter, blocked_groups, blocked_jobs, count_blocked
from ..services.inspect.jobs import job_database
from ..services.inspect.lanes import Behind, behind
from ..services.operations import shown_now
from . import wording
from .acting import ACTIONS, ActingAdmin, JobAction
from .blocked_groups import rows_of
from .changelist import SelectionChangeList, act_links
from .confirmations import token_of
from .filters import QUEUES_SHOWN, FingerprintFilter, QueueFilter

GROUPED = "by"  # the parameter of the URL for groups
MOST_GROUPS = 200  # that are shown


class OrderedQueueFilter(QueueFilter):
    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        ordered = Queue.objects.using(job_database()).filter(policy=ORDERED)
        return [(name, name) for name in ordered.values_list("name", flat=True)[:QUEUES_SHOWN]]


class BlockedChangeList(SelectionChangeList):
    """Longest blocked first, or the latest blocked first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.title = str(self.opts.verbose_name_plural).capitalize()

    def get_results(self, request: HttpRequest) -> None:
        using = self.queryset.db
        wanted = wanted_by(self.selection)
        self.counted = count_blocked(wanted, using=using)
        self.result_count = self.full_result_count = min(self.counted, MANY)
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True
        self.paginator = Paginator(range(self.result_count), self.list_per_page)
        self.page_num = min(max(self.page_num, 1), self.paginator.num_pages)
        self.multi_page = self.result_count > self.list_per_page
        ids = blocked_jobs(
            wanted,
            self.list_per_page,
            offset=(self.page_num - 1) * self.list_per_page,
            newest_first=self.is_reversed,
            using=using,
        )
        by_id = {row.pk: row for row in self.root_queryset.filter(pk__in=ids)}
        self.result_list = with_behind(by_id[id] for id in ids if id in by_id)

    @property
    def turned(self) -> str:  # type: ignore[override]
        return f"-{self.list_display.index('since')}"

    @property
    def has_more_to_select(self) -> bool:
        return self.multi_page

    @property
    def count_text(self) -> str:  # type: ignore[override]
        return wording.many(self.counted)

    @property
    def grouped_link(self) -> str:
        return self.get_query_string({GROUPED: "error", "fingerprint": None, SEARCH_VAR: None, ORDER_VAR: None})


def wanted_by(selection: Selection) -> Filter:
    return Filter(queue=selection.queue, fingerprint=selection.fingerprint, key_prefix=selection.key_prefix)


def with_behind(rows: Iterable[BlockedKey]) -> list[BlockedKey]:
    """The rows, each with the jobs that wait behind it as ``behind``."""
    keys = list(rows)
    waiting = behind([(row.queue_id, row.singleton_key) for row in keys], using=job_database())
    for row in keys:
        row.behind = waiting[row.queue_id, row.singleton_key]  # type: ignore[attr-defined]
    return keys


@admin.register(BlockedKey)
class BlockedKeyAdmin(ActingAdmin):
    list_display = ("key", "queue_shown", "blocker", "since", "waiting", "acts_shown")
    list_display_links = ("key",)
    list_filter = (OrderedQueueFilter, FingerprintFilter)
    look_ups = ("queue", "fingerprint")
    search_field = "key_prefix"
    always: Mapping[str, Any] = MappingProxyType({"blocks_key": True})
    sortable_by = ("since",)
    ordering = ("finalized_at",)
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

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The keys one by one, or grouped by queue and error."""
        if request.method == "GET" and request.GET.get(GROUPED) == "error":
            return self._groups_view(request)
        return super().changelist_view(request, extra_context)

    def _groups_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        using = job_database()
        shown = shown_now(using=using)
        queue = request.GET.get("queue", "").replace("\0", "")
        groups = blocked_groups(queue or None, using=using)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "rows": rows_of(groups[:MOST_GROUPS], using, self.url),
            "is_full": len(groups) > MOST_GROUPS,
            "queue": queue,
            "shown": token_of(shown),
            "checkbox": ACTION_CHECKBOX_NAME,
            "may_retry": self.has_retry_permission(request),
            "may_skip": self.has_skip_permission(request),
        }
        return TemplateResponse(request, "admin/jobqueue/blockedkey/groups.html", context)

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
    def queue_shown(self, row: BlockedKey) -> SafeString:
        return format_html('<a href="{}">{}</a>', self.url("queue_change", quote(row.queue_id)), row.queue_id)

    @admin.display(description=_("blocked by"))
    def blocker(self, row: BlockedKey) -> SafeString:
        return format_html(
            '{} <span class="jq-error">{}</span>',
            self._job_link(row.pk, row.seq),
            wording.one_line(row),
        )

    @admin.display(description=_("since"), ordering="finalized_at")
    def since(self, row: BlockedKey) -> str:
        return wording.time_tag(row.finalized_at, ago=True)

    @admin.display(description=_("waiting"))
    def waiting(self, row: BlockedKey) -> str | SafeString:
        """How many jobs wait, since when the oldest does, and which of them runs next."""
        jobs = _behind(row)
        if jobs.next is None:
            return _t("no job waits")
        query = urlencode({"queue": row.queue_id, "key": row.singleton_key, "state": "waiting"})
        return format_html(
            '<a href="{}?{}">{}</a> <span class="jq-quiet">{} {}</span> <span class="jq-quiet">{} {}</span>',
            self.url("job_changelist"),
            query,
            wording.many(jobs.number),
            _t("oldest"),
            wording.time_tag(jobs.oldest_at, ago=True),
            _t("next"),
            self._job_link(jobs.next.id, jobs.next.seq),
        )

    def _job_link(self, id: UUID, seq: int) -> SafeString:
        return format_html('<a href="{}">#{}</a>', self.url("job_change", id), seq)

    @admin.display(description=_("action"))
    def acts_shown(self, row: BlockedKey) -> SafeString:
        return act_links(row, self.admin_site.name)

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
