"""Tasks that a test sends, and a worker that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.tasks import TaskResult
from django_jobqueue.worker import work
from tests.waiting import until

Finish = Callable[..., "TaskResult[Any]"]


@pytest.fixture
def queues(transactional_db: None) -> None:
    services.create_queue("default", retry_limit=0)
    services.create_queue("other", retry_limit=0)
    services.create_fifo_queue("ordered")


@pytest.fixture
def finish(queues: None) -> Iterator[Finish]:
    """``finish(result)``: has a worker run it, and waits until it is finished."""

    def wait(result: TaskResult[Any]) -> TaskResult[Any]:
        def ended() -> bool:
            result.refresh()
            return result.is_finished

        until(ended, f"{result.task.name} is finished")
        return result

    with work(["default", "other", "ordered"], poll_seconds=0.05):
        yield wait
