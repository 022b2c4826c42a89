"""Lists of any number of jobs: newest first, with links to older and newer jobs, and counts that stop at a limit."""

from __future__ import annotations

import copy
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest, QueryDict
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from ..counting import MANY, Count
from ..exceptions import InvalidOption
from ..services.inspect.lists import count, look
from .wording import many

OLDER, NEWER = "older", "newer"


class SelectionChangeList(ChangeList):
    """Shows the jobs of the selection in the URL. An action on all of them is recorded with that selection."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        queryset: Any = super().get_queryset(request, *args, **kwargs)
        screen: Any = self.model_admin
        try:
            return queryset.selected(screen.selection(request))
        except InvalidOption as error:
            raise IncorrectLookupParameters from error


class JobChangeList(SelectionChangeList):
    """Pages by sequence number: ``?older=N`` shows jobs before N, ``?newer=N`` jobs after N."""

    counted: Count

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.older, self.newer = (_number(request.GET.get(name)) for name in (OLDER, NEWER))
        super().__init__(_without_place(request), *args, **kwargs)

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        return ["-seq"]

    def get_results(self, request: HttpRequest) -> None:
        self.piece = look(self.queryset, self.list_per_page + 1, before=self.older, after=self.newer)
        jobs = self.piece.jobs[: self.list_per_page]
        self.result_list = jobs if self.newer is None else jobs[::-1]
        self.counted = self._count()
        # Django's templates read these attributes.
        self.result_count = max(self.counted.number, len(self.result_list))
        self.full_result_count = self.result_count
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(self.result_list, self.list_per_page)

    def _count(self) -> Count:
        """Count the jobs; if the first page has read all of them, they are not read again."""
        first = self.older is None and self.newer is None
        if not first or len(self.piece.jobs) > self.list_per_page:
            return count(self.queryset)
        return Count(len(self.piece.jobs), self.piece.looked if self.piece.more else None)

    @property
    def has_more_to_select(self) -> bool:
        """Whether "Select all" selects more than this page."""
        return bool(self.older_link or self.newer_link)

    @property
    def older_link(self) -> str | None:
        if self.newer is not None:
            return self._link(OLDER, self.result_list[-1].seq if self.result_list else self.newer + 1)
        if not self.piece.more:
            return None
        full = len(self.piece.jobs) > self.list_per_page
        return self._link(OLDER, self.result_list[-1].seq if full else self.piece.place)

    @property
    def newer_link(self) -> str | None:
        if self.older is not None:
            return self._link(NEWER, self.result_list[0].seq if self.result_list else self.older - 1)
        if self.newer is None or not self.piece.more:
            return None
        full = len(self.piece.jobs) > self.list_per_page
        return self._link(NEWER, self.result_list[0].seq if full else self.piece.place)

    @property
    def newest_link(self) -> str | None:
        return None if self.older is None and self.newer is None else self.get_query_string()

    def _link(self, name: str, place: int) -> str:
        return self.get_query_string({name: place})

    @property
    def stopped_after(self) -> int | None:
        """How many sequence numbers were searched, if the search stopped before the page was full."""
        short = len(self.piece.jobs) <= self.list_per_page
        return self.piece.looked if self.piece.more and short and self.piece.looked else None

    @property
    def count_text(self) -> str:
        number = many(self.counted.number)
        if self.counted.among is not None:
            return _("%(number)s among the latest %(among)s") % {
                "number": number,
                "among": f"{self.counted.among:,}",
            }
        return number


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
