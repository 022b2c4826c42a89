"""The base of all pages: only verbs write, only declared lookups filter, and no script or style is inline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from .. import services
from ..exceptions import JobQueueError
from ..services.inspect.jobs import job_database

SEE_DATA = "jobqueue.see_job_data"
EDIT_DATA = "jobqueue.edit_job_data"
MAX_REASON = 1_000


class ReasonActionForm(ActionForm):
    """The choice of an action on a list, with its reason."""

    reason = forms.CharField(label=_("Reason"), required=False, max_length=MAX_REASON)


def reason_field() -> forms.CharField:
    """The reason for an edit, at the end of its form."""
    return forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=MAX_REASON,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
        help_text=_("Optional; recorded with the change."),
    )


class JobQueueAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it is generic to type checkers only
    """A read-only page, on which each action has a permission of its own."""

    show_full_result_count = False  # no count of all rows
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    look_ups: Iterable[str] = ()  # the URL parameters that are allowed as filters

    class Media:
        css = {"all": ["jobqueue/admin.css"]}
        js = ["jobqueue/admin.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Rows of the database that verbs use, even if reads are routed to another one."""
        return super().get_queryset(request).using(job_database())

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Choices from the database that verbs use."""
        return super().formfield_for_foreignkey(db_field, request, **{"using": job_database(), **kwargs})

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, titled with the plural name of the model instead of Django's "Select … to change"."""
        title = str(self.opts.verbose_name_plural).capitalize()
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow only declared filters: ``?data__password__startswith=`` would disclose secrets letter by letter."""
        return lookup in set(self.look_ups)

    def reason_given(self, request: HttpRequest, *, needed: bool) -> str | None:
        """The reason that a form sent; ``None`` and a message if it is needed and missing."""
        reason = request.POST.get("reason", "").strip()[:MAX_REASON]
        if needed and not reason:
            self.message_user(request, _("Nothing was changed: give a reason."), messages.ERROR)
            return None
        return reason

    def elsewhere(self, request: HttpRequest, name: str, *args: Any) -> HttpResponse:
        """Redirect to another page, if the user may see this one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(self.url(name, *args))

    def job_of(self, request: HttpRequest, id: str) -> HttpResponse:
        """Redirect to the page of the job with an id or a number, if the user may see this page."""
        try:
            job = services.find_job(id)
        except JobQueueError:
            return self.gone(request, id)
        return self.elsewhere(request, "job_change", job.pk)

    def gone(self, request: HttpRequest, id: str) -> HttpResponse:
        """Say which id does not exist, and of what, on the list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        facts = {"what": self.opts.verbose_name, "id": id[:60] if id.isprintable() else ascii(id[:60])}
        text = _t("There is no %(what)s %(id)s: it may have been deleted.") % facts
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self.url(f"{self.opts.model_name}_changelist"))

    def url(self, name: str, *args: Any) -> str:
        """The URL of one of our pages on the site of this one, such as ``url("job_change", job.pk)``."""
        return page_url(self.admin_site.name, name, *args)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.retry_job")

    def has_skip_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.skip_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.cancel_job")

    def has_erase_permission(self, request: HttpRequest) -> bool:
        """Django's ``delete`` permission under another name, because Django's own delete pages are not used."""
        return request.user.has_perm("jobqueue.delete_job")


def page_url(site: str, name: str, *args: Any) -> str:
    """The URL of one of our pages on the admin site of this name; a project can have several."""
    return reverse(f"admin:jobqueue_{name}", args=args, current_app=site)


def may_see_data(request: HttpRequest) -> bool:
    return request.user.has_perm(SEE_DATA)


def may_edit_data(request: HttpRequest) -> bool:
    """Editing data also requires the permissions to see data and to retry jobs."""
    return all(map(request.user.has_perm, (EDIT_DATA, SEE_DATA, "jobqueue.retry_job")))
