from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .jobs import ship
from .models import Order


@csrf_exempt
@require_POST
def buy(request: HttpRequest) -> JsonResponse:
    """Store an order and send its job, in the transaction of the request."""
    order = Order.objects.create(customer=request.POST["customer"], title=request.POST["title"])
    job = ship.send(order.customer, order.pk)
    return JsonResponse({"order": order.pk, "job": str(job.pk)})


@csrf_exempt
@require_POST
def buy_and_fail(request: HttpRequest) -> JsonResponse:
    """Do the same, and raise an error: neither the order nor its jobs may exist afterwards."""
    buy(request)
    raise RuntimeError("the payment was refused")


def orders(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"orders": list(Order.objects.order_by("pk").values("customer", "title", "state"))})
