"""Handlers as a project declares them. Lines with ``# error`` are wrong, and type checkers must say so."""

from datetime import timedelta
from typing import Any

from django_jobqueue import JobContext, job


@job
def tick() -> None: ...


@job()
def tock() -> None: ...


@job(queue="mails", retry_limit=5, retry_delay=timedelta(seconds=30), priority=3, tags=["mail"])
def remind(user_id: int, text: str = "Hello") -> str:
    return f"{text}, {user_id}"


@job(queue="mails", group_key=lambda user_id: f"user {user_id}", retries={ValueError: False, OSError: 30})
async def fetch(user_id: int) -> int:
    return user_id


@job(queue="orders", singleton_key=lambda customer, **_: customer)
def ship(customer: str, order: int) -> str:
    return f"shipped {order} to {customer}"


@job(queue="orders", singleton_key="one", on_duplicate="return")
def report(day: str) -> None: ...


@job(queue="mails", on_duplicate="ignore")
def maybe() -> None: ...


@job(queue="mails", throttle_seconds=60)
def digest(user_id: int) -> None: ...


@job(queue="mails", takes_context=True)
def export(context: JobContext, rows: int) -> int:
    context.progress(1.0)
    return rows


@job(queue="mails", takes_context=True, singleton_key=lambda rows: str(rows))
def export_once(context: JobContext, rows: int) -> int:
    return rows


@job(queue="mails", takes_context=True, singleton_key="one", on_duplicate="return")
async def export_async(context: JobContext, rows: int) -> int:
    return rows


@job(queue="mails", unpack=False, atomic=True)
def ingest(data: dict[str, Any]) -> None: ...


@job(queue="mails", dely=3)  # error
def misspelled() -> None: ...


@job(queue="mails", takes_context=True, prioriti=3)  # error
def misspelled_with_context(context: JobContext) -> None: ...


@job(queue="mails", retry_limit="5")  # error
def wrong_type() -> None: ...


@job(queue="mails", singleton_key="a", dely=3)  # error
def misspelled_with_key() -> None: ...


@job(queue="mails", on_duplicate="raise")  # error
def wrong_choice() -> None: ...


@job("mails")  # error
def positional() -> None: ...
