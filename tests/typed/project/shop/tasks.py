"""Django's tasks with the options of jobs, as docs/howto/django-tasks.md shows them."""

from datetime import timedelta

from django_jobqueue.tasks import task


@task
def remind(user_id: int) -> str:
    return f"reminded {user_id}"


@task(queue_name="orders", singleton_key=lambda order_id, **_: f"order {order_id}", retry_limit=5)
def ship(order_id: int, step: str) -> None: ...


@task(retry_limit=5)
def retried() -> None: ...


@task(retry_delay=timedelta(seconds=5), tags=["mail"], takes_context=True)
def with_context(context: object) -> None: ...


@task(retry_limt=5)  # error
def misspelled() -> None: ...


def sends() -> None:
    remind.enqueue(7)
    remind.using(queue_name="orders", singleton_key="user 7", retry_limit=5).enqueue(7)
    ship.enqueue(order_id=1, step="pack")
    remind.enqueue_many([{"user_id": 8}, {"user_id": 9}])
    remind.using(retry_limt=5)  # error
