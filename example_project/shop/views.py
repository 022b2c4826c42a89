"""The shop's page: a lane per customer, and buttons that send, break, skip and retry jobs.

No page and no button of the shop asks for a login, because it is a demo: ``make demo`` serves it on the loopback
address, and Django refuses requests for other hosts and POSTs from other sites. Only the admin asks for a login.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST

from django_jobqueue import services
from django_jobqueue.exceptions import InvalidOption, InvalidTransition, JobNotFound

from ..settings import DEMO_PASSWORD, DEMO_USER
from .board import board
from .jobs import export_orders, kill_worker
from .models import Customer, Order
from .orders import ITEMS, break_card, place_order, retry_order, skip_order

NO_JOB = UUID(int=0)  # the page replaces it by the id of a job


@require_GET
@ensure_csrf_cookie
def index(request: HttpRequest) -> HttpResponse:
    context = {
        "user": DEMO_USER,
        "password": DEMO_PASSWORD,
        "job_url": reverse("admin:jobqueue_job_change", args=[NO_JOB]),
        "progress_url": reverse("progress", args=[NO_JOB]),
    }
    return render(request, "shop/index.html", context)


@require_GET
@never_cache
def state(request: HttpRequest) -> JsonResponse:
    """What the page shows. It asks about once a second."""
    return JsonResponse(board())


Button = Callable[[HttpRequest], str]


def button(act: Button) -> Callable[[HttpRequest], JsonResponse]:
    """A view that acts, and answers what it did, or with status 409 why it did not."""

    @require_POST
    @wraps(act)
    def view(request: HttpRequest) -> JsonResponse:
        try:
            return JsonResponse({"text": act(request)})
        except InvalidTransition as error:
            return JsonResponse({"text": f"The order was decided in the meantime. {error}"}, status=409)
        except (InvalidOption, JobNotFound, ValueError) as error:
            return JsonResponse({"text": str(error)}, status=409)

    return view


@button
def buy(request: HttpRequest) -> str:
    """Store the order and its job in one transaction."""
    customer = _customer(request)
    placed = place_order(customer, ITEMS[customer.placed % len(ITEMS)])
    return f"{customer} ordered {placed.item}: order {placed.number}, at the end of the lane."


@button
def break_it(request: HttpRequest) -> str:
    customer = _customer(request)
    if customer.key in services.blocked_keys("orders"):
        raise ValueError(f"{customer}'s lane is blocked already. Skip or retry the order that blocks it.")
    broken = break_card(customer)
    return f"{customer}'s card has expired. Order {broken.number} fails, is retried once, and then blocks the lane."


@button
def skip(request: HttpRequest) -> str:
    order = _order(request)
    skip_order(order, request.POST.get("reason", ""))
    return f"Order {order.number} of {order.customer} was skipped and refunded. The orders behind it ship, in order."


@button
def retry(request: HttpRequest) -> str:
    order = _order(request)
    retry_order(order)
    return f"{order.customer} gave another card. Order {order.number} ships first, then the orders behind it."


@button
def kill(request: HttpRequest) -> str:
    if kill_worker.send() is None:
        return "A worker process is being killed already."
    return "A worker process is killed with SIGKILL. The orders that it was packing run again, in their places."


@require_POST
def export(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        job = export_orders.send(rows=100)
    return JsonResponse({"id": str(job.pk)})


@require_GET
@never_cache
def progress(request: HttpRequest, id: UUID) -> HttpResponse:
    """The progress of a job, which the page requests until the job has ended."""
    try:
        job = services.get_job(id)
    except JobNotFound as error:
        raise Http404(str(error)) from error
    return JsonResponse(
        {
            "state": job.state,
            "progress": job.progress or 0,
            "text": job.progress_text or services.why(job),
            "ended": job.finalized_at is not None,
        }
    )


def _customer(request: HttpRequest) -> Customer:
    return get_object_or_404(Customer, pk=request.POST.get("customer"))


def _order(request: HttpRequest) -> Order:
    """The order of the job that the page showed. If another browser was faster, the verbs refuse the job."""
    return get_object_or_404(Order.objects.select_related("customer"), job_id=UUID(request.POST.get("job", "")))
