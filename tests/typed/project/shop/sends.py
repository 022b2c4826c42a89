"""Sends as a project writes them. ``# error``: must be refused; ``# is: …``: the type that checkers must reveal."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django_jobqueue import services
from django_jobqueue.models import Job

from .jobs import (
    digest,
    export,
    export_async,
    export_once,
    fetch,
    ingest,
    maybe,
    remind,
    report,
    ship,
    tick,
    tock,
)


def handlers() -> None:
    reveal_type(tick.send())  # is: Job
    reveal_type(tock.send())  # is: Job
    reveal_type(remind.send(7))  # is: Job
    reveal_type(fetch.send(7))  # is: Job
    reveal_type(ship.send("ada", 1))  # is: Job | None
    reveal_type(report.send("today"))  # is: Job
    reveal_type(maybe.send())  # is: Job | None
    reveal_type(digest.send(1))  # is: Job | None
    reveal_type(export.send(rows=1))  # is: Job
    reveal_type(export_once.send(rows=1))  # is: Job | None
    reveal_type(export_async.send(1))  # is: Job
    reveal_type(ingest.send({"a": 1}))  # is: Job
    reveal_type(remind(7))  # is: str
    reveal_type(ship.send("ada", 1).pk)  # error
    remind.send("seven")  # error
    remind.send()  # error
    remind.send(user=7)  # error
    export.send("context", 1)  # error
    ship.send("ada")  # error


def other_options() -> None:
    reveal_type(remind.using(delay=60, priority=2).send(1))  # is: Job
    reveal_type(remind.using(delay=timedelta(hours=1), id=uuid4(), queue="other", using="jobs").send(1))  # is: Job
    reveal_type(remind.using(singleton_key="a").send(1))  # is: Job | None
    reveal_type(remind.using(singleton_key=lambda user_id: "a").send(1))  # is: Job | None
    reveal_type(remind.using(throttle_seconds=60).send(1))  # is: Job | None
    reveal_type(remind.using(on_duplicate="ignore").send(1))  # is: Job | None
    reveal_type(remind.using(singleton_key="a", on_duplicate="return").send(1))  # is: Job
    reveal_type(remind.using(singleton_key="a").using(delay=1).send(1))  # is: Job | None
    reveal_type(ship.using(delay=60).send("ada", 1))  # is: Job | None
    reveal_type(ship.using(on_duplicate="return").send("ada", 1))  # is: Job
    reveal_type(export.using(priority=1).send(rows=1))  # is: Job
    remind.using(dely=3)  # error
    remind.using(delay=1).using(dely=3)  # error
    remind.using(singleton_key="a", dely=3)  # error
    remind.using(priority="high")  # error
    remind.using(delay=60).send("seven")  # error


async def in_async_code() -> None:
    reveal_type(await remind.asend(7))  # is: Job
    reveal_type(await ship.asend("ada", 1))  # is: Job | None
    reveal_type(await remind.using(delay=60).asend(7))  # is: Job
    reveal_type(await remind.using(singleton_key="a").asend(7))  # is: Job | None
    reveal_type(await fetch(7))  # is: int
    reveal_type(await services.asend("mails", {"a": 1}))  # is: Job | None
    reveal_type(await services.asend("mails", on_duplicate="return"))  # is: Job
    await remind.asend("seven")  # error
    await services.asend("mails", dely=3)  # error
    print(await (await remind.asend(7)).aresult(timeout=5), await services.await_for(uuid4(), timeout=5))


def verbs() -> None:
    reveal_type(services.send("mails", {"a": 1}, priority=3, tags=["a"], retry_limit=None))  # is: Job | None
    reveal_type(services.send("mails", singleton_key="a", on_duplicate="return"))  # is: Job
    reveal_type(services.send("mails", singleton_key="a", on_duplicate="ignore"))  # is: Job | None
    services.send("mails", dely=3)  # error
    services.send("mails", on_duplicate="never")  # error
    services.send("mails", priority="high")  # error


def many(customers: list[str]) -> None:
    services.send_many("mails", [{"data": 1, "priority": 2}, {"delay": timedelta(hours=1), "tags": ["a"]}])
    services.send_many("orders", [ship.item(customer, 1) for customer in customers])
    services.send_many("mails", [remind.using(delay=1).item(n) for n in range(3)], on_duplicate="ignore")
    services.send_many("mails", ({"data": n, "singleton_key": str(n)} for n in range(3)))
    items: list[services.Item] = [{"data": customer} for customer in customers]
    services.send_many("mails", items)
    services.send_many("mails", [{"data": 1, "dely": 3}])  # error
    services.send_many("mails", [{"data": 1, "priority": "high"}])  # error
    ship.item("ada")  # error


def results(job: Job) -> Any:
    job.result(timeout="soon")  # error
    return job.result(timeout=5), job.result(), services.wait_for(job, timeout=timedelta(seconds=1))
