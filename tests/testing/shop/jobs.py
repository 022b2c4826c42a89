"""The jobs of a project that has tests."""

from __future__ import annotations

import sys

from django.contrib.auth.models import Group

from django_jobqueue import FailForGood, JobContext, RetryLater, job


@job(queue="shop-mails", retry_limit=2)
def remind(user_id: int, text: str = "Hello") -> dict[str, str]:
    if user_id < 0:
        raise ValueError(f"no user {user_id}")
    return {"wrote": f"{text}, {user_id}"}


@job(queue="shop-orders", singleton_key=lambda order_id, **_: f"order {order_id}", retry_limit=0)
def ship(order_id: int, step: str) -> None:
    if step == "lose":
        raise FailForGood("the parcel is gone")
    Group.objects.create(name=f"{order_id} {step}")
    if step == "pack":
        ship.send(order_id=order_id, step="send")
        remind.using(delay=3600).send(user_id=order_id)


@job(queue="shop-mails", takes_context=True)
def report(context: JobContext, rows: int) -> int:
    context.progress(1.0, f"{rows} rows")
    return context.attempt


@job(queue="shop-mails", retry_limit=5)
async def fetch_page(url: str) -> str:
    if url == "busy":
        raise RetryLater(delay=60)
    return url.upper()


@job(queue="shop-mails", atomic=True)
def book(name: str) -> None:
    Group.objects.create(name=name)
    if name == "bad":
        Group.objects.create(name=name)  # the database refuses it


class Interrupted(BaseException):
    """Not meant for the job, but for the process: like Ctrl-C, or what pytest.fail() raises."""


@job(queue="shop-mails", retry_limit=0)
def leave(how: str) -> None:
    Group.objects.create(name=how)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "outcome":
        raise Interrupted
    if how == "generator":
        raise GeneratorExit
    sys.exit(3)


@job(queue="shop-mails", retry_limit=0)
async def leave_async() -> None:
    sys.exit(3)
