"""The shop's page: it sends jobs in the transaction of the request, and shows their progress."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from django_jobqueue import services
from django_jobqueue.exceptions import JobNotFound
from django_jobqueue.models import BlockedKey

from .jobs import export_orders
from .models import Customer, Order
from .orders import place_order
from .sample import ITEMS


def index(request: HttpRequest) -> HttpResponse:
    return render(
        request,
        "shop/index.html",
        {
            "customers": Customer.objects.annotate(placed=Count("orders")),
            "items": ITEMS,
            "orders": Order.objects.select_related("customer").order_by("-pk")[:10],
            "blocked": [(key, key.error.strip().splitlines()[-1]) for key in BlockedKey.objects.with_waiting()[:10]],
        },
    )


@require_POST
def buy(request: HttpRequest) -> HttpResponse:
    """Store the order and its job in one transaction."""
    customer = get_object_or_404(Customer, pk=request.POST.get("customer"))
    place_order(customer, request.POST.get("item") or ITEMS[0])
    return redirect("index")


@require_POST
def export(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        job = export_orders.send(rows=100)
    return JsonResponse({"id": str(job.pk)})


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
