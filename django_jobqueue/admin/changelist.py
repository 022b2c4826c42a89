"""Lists of any number of jobs: newest first, with links to older and newer jobs, and counts that stop at a limit."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest, QueryDict
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..counting import MANY, Count
from ..displayed import shown_data
from ..exceptions import InvalidOption
from ..models import Job
from ..redaction import redacted_text
from ..selection import Selection
from ..services.inspect.jobs import job_database
from ..services.inspect.lists import read_page, search
from ..services.operations import shown_now
from ..states import JobState
from .acting import ACTIONS
from .base import may_see_data, page_url
from .confirmations import token_of
from .filters import GROUPS, TEXT, Shown, StateFilter
from .wording import many, moment, number

OLDER, NEWER = "older", "newer"
BOUNDS = {"gte": gettext_lazy("from"), "lte": gettext_lazy("to")}


@dataclass(frozen=True, slots=True)
class Chip:
    """An active filter, and the URL of the list without it."""

    name: Any
    value: str
    without: str


class SelectionChangeList(ChangeList):
    """Shows the jobs of the selection in the URL. An action on all of them is recorded with that selection.

    The action takes the jobs as they were when the list was read.
    """

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.read_at, self.shown = timezone.now(), ""
        if request.method == "GET":  # an action is about what the list had shown before
            now = shown_now(using=job_database())
            self.read_at, self.shown = now.at, token_of(now)
        super().__init__(request, *args, **kwargs)
        for row in self.result_list:
            row.acts = [
                act
                for act in ACTIONS.values()
                if act.verb != "delete" and not act.refusal(row) and request.user.has_perm(act.permission)
            ]
        with_acts = next((row for row in self.result_list if row.acts), None)
        self.has_acts = with_acts is not None
        if with_acts is not None:
            with_acts.is_first = True  # the target of a link for the keyboard

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        queryset: Any = super().get_queryset(request, *args, **kwargs)
        screen: Any = self.model_admin
        try:
            self.selection: Selection = screen.selection(request)
        except InvalidOption as error:
            raise IncorrectLookupParameters from error
        return queryset.selected(self.selection)

    @property
    def selected_text(self) -> str:
        """What "Select all" has selected."""
        facts = {"number": self.count_text, "rows": self.opts.verbose_name_plural, "time": moment(self.read_at)[11:]}
        if self.selection.blocks_key:
            return _("Selected: %(number)s that failed until %(time)s") % facts
        return _("Selected: %(number)s %(rows)s as they were at %(time)s") % facts

    count_text = ""

    @property
    def is_reversed(self) -> bool:
        """Whether the operator has clicked the head of the sorted column, to see the other end of the list first."""
        return self.params.get(ORDER_VAR) == self.turned

    turned = "-1"  # the parameter of the URL for the other order

    @property
    def no_filters(self) -> str:
        return self.get_query_string(dict.fromkeys((SEARCH_VAR, *self.get_filters_params())))

    @property
    def chips(self) -> list[Chip]:
        """The active filters, in the order of the filters."""
        chips = []
        if self.query:
            chips.append(Chip(_("search"), self.query, self.get_query_string({SEARCH_VAR: None})))
        for spec in self.filter_specs:
            for name in spec.expected_parameters():
                if name and (value := self.filter_params.get(name, [""])[-1]):
                    title = f"{spec.title} {BOUNDS.get(name.rpartition('__')[2], '')}".strip()
                    shown = spec.shown(value) if isinstance(spec, Shown) else value
                    chips.append(Chip(title, shown, self.get_query_string({name: None})))
        return chips


def act_links(row: Any, site: str) -> SafeString:
    """The buttons of a row, each of which leads to the page that asks for confirmation."""
    return format_html_join(
        " ",
        '<a{} class="button jq-act{}" href="{}" aria-label="{} #{}">{}</a>',
        (
            (
                SafeString(' id="jq-first-act"') if getattr(row, "is_first", False) and act is row.acts[0] else "",
                " jq-grave" if act.is_grave else "",
                page_url(site, "job_act", row.pk, act.verb),
                act.label,
                row.seq,
                act.label,
            )
            for act in row.acts
        ),
    )


class JobChangeList(SelectionChangeList):
    """Pages by sequence number: ``?older=N`` shows jobs before N, ``?newer=N`` jobs after N.

    The newest jobs come first, or the oldest, because the index of ranges can be read from both ends.
    """

    counted: Count | None = None
    states: Mapping[JobState, Count] = MappingProxyType({})
    turned = "1"

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.older, self.newer = (_number(request.GET.get(name)) for name in (OLDER, NEWER))
        self.sees_data = may_see_data(request)
        super().__init__(_without_place(request), *args, **kwargs)

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["-seq"]

    def get_results(self, request: HttpRequest) -> None:
        at_an_end = self.older is None and self.newer is None
        after = 0 if at_an_end and self.is_reversed else self.newer
        self.piece = self._searched(after) if self.text else self._read(after)
        jobs = self.piece.jobs[: self.list_per_page]
        self.result_list = jobs if (after is None) != self.is_reversed else jobs[::-1]
        # Django's templates read these attributes.
        self.result_count = max(self.counted.number if self.counted else 0, len(self.result_list))
        self.full_result_count = self.result_count
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(self.result_list, self.list_per_page)

    @property
    def state_choices(self) -> list[dict[str, Any]]:
        """The choices of the filter for states that are groups of states, with their counts."""
        (spec,) = (spec for spec in self.filter_specs if isinstance(spec, StateFilter))
        return list(islice(spec.choices(self), 1 + len(GROUPS)))

    def _read(self, after: int | None) -> Any:
        bare = replace(self.selection, states=None)
        is_whole = bare == Selection(queue=bare.queue)
        root: Any = self.root_queryset
        page = read_page(
            self.queryset,
            self.list_per_page + 1,
            any_state=root.selected(bare),
            all_of=(bare.queue or "") if is_whole else None,
            before=self.older,
            after=after,
        )
        self.counted, self.states = page.count, page.states
        return page.piece

    @property
    def text(self) -> str:
        """The text to find in errors and data; no selection has it, because it is searched only up to a limit."""
        return self.filter_params.get(TEXT, [""])[-1].replace("\0", "").strip()

    def _searched(self, after: int | None) -> Any:
        return search(
            self.queryset.defer(None).defer("output", "attempts"),
            self.text,
            self.list_per_page + 1,
            is_shown=partial(shows, text=self.text, in_data=self.sees_data),
            in_data=self.sees_data,
            before=self.older,
            after=after,
        )

    @property
    def has_more_to_select(self) -> bool:
        """Whether "Select all" selects more than this page."""
        return not self.text and bool(self.older_link or self.newer_link)

    @property
    def _oldest(self) -> int | None:
        return min((job.seq for job in self.result_list), default=None)

    @property
    def _newest(self) -> int | None:
        return max((job.seq for job in self.result_list), default=None)

    @property
    def _goes_up(self) -> bool:
        return self.newer is not None or (self.older is None and self.is_reversed)

    @property
    def _next_place(self) -> int | None:
        """Where the list continues in the direction in which it was read; ``None`` at its end."""
        if not self.piece.more:
            return None
        full = len(self.piece.jobs) > self.list_per_page
        return (self._newest if self._goes_up else self._oldest) if full else self.piece.place

    @property
    def older_link(self) -> str | None:
        if not self._goes_up:
            return self._link(OLDER, self._next_place)
        return None if self.newer is None else self._link(OLDER, self._oldest or self.newer + 1)

    @property
    def newer_link(self) -> str | None:
        if self._goes_up:
            return self._link(NEWER, self._next_place)
        return None if self.older is None else self._link(NEWER, self._newest or self.older - 1)

    @property
    def first_link(self) -> str | None:
        return None if self.older is None and self.newer is None else self.get_query_string()

    def _link(self, name: str, place: int | None) -> str | None:
        return None if place is None else self.get_query_string({name: place})

    @property
    def stopped(self) -> str:
        """How far was searched, if the search stopped before the page was full; empty otherwise."""
        piece = self.piece
        if not piece.more or len(piece.jobs) > self.list_per_page or not (piece.looked or self.text):
            return ""
        facts = {"number": number(piece.looked), "text": self.text}
        if not self.text:
            return _("%(number)s jobs were searched for this page; older jobs may match too.") % facts
        if not piece.looked:
            return _("The search for “%(text)s” took too long. Choose a queue, a state or a time too.") % facts
        if self.first_link or self.is_reversed:
            return _("Searched %(number)s jobs for “%(text)s”; others may have it too.") % facts
        return _("Searched the newest %(number)s jobs for “%(text)s”; older jobs may have it too.") % facts

    @property
    def text_search(self) -> str | None:
        """The URL that searches errors and data for the text of the search box, which finds ids and keys."""
        return self.get_query_string({TEXT: self.query, SEARCH_VAR: None}) if self.query and not self.text else None

    @property
    def count_text(self) -> str:  # type: ignore[override]
        if self.counted is None:
            return number(len(self.result_list))
        counted = many(self.counted.number)
        if self.counted.among is not None:
            return _("%(number)s among the latest %(among)s") % {
                "number": counted,
                "among": number(self.counted.among),
            }
        return counted


def shows(job: Job, *, text: str, in_data: bool) -> bool:
    """Whether the text is in what is displayed of a job, where sensitive values are hidden."""
    wanted = text.casefold()
    if wanted in redacted_text(job.error).casefold():
        return True
    return in_data and wanted in json.dumps(shown_data(job), ensure_ascii=False).casefold()


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages of the first ``MANY`` rows of a list that is read along an index; further rows are not counted."""

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[:MANY].count()  # type: ignore[attr-defined,no-any-return]


def _number(text: str | None) -> int | None:
    """A sequence number; ``None``, which is the beginning, if the text is not a number."""
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return min(int(text[:19]), 2**63 - 1)


def _without_place(request: HttpRequest) -> HttpRequest:
    """The request without ``older`` and ``newer``, so that links to other filters start at the first page."""
    bare = copy.copy(request)
    kept = QueryDict(mutable=True)
    for name, values in request.GET.lists():
        if name not in (OLDER, NEWER):
            kept.setlist(name, values)
    bare.GET = kept  # type: ignore[assignment]
    return bare
