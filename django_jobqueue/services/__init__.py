"""The verbs: the only writers of a job's state.

Each verb is atomic: inside ``atomic()`` it is part of the caller's transaction, otherwise it runs in its own. Each
takes ``using=``, the alias of a database, if it is not to be the router's choice.
"""

from inspect import iscoroutinefunction
from types import FunctionType

from asgiref.sync import SyncToAsync, sync_to_async

from ..claims import Claim
from ..database_errors import explained
from ..engine.claims import Bookmark
from ..send_options import Item
from .alerts import send_alerts
from .claims import set_visibility, touch
from .fetch import fetch
from .finish import (
    Failure,
    acknowledge_cancellation,
    complete,
    fail,
    give_back,
    mark_unknown_stopped,
    stop,
)
from .finish_many import Finished, finish_many
from .inspect.jobs import Minute, Stats, activity, aget_job, blocked_keys, find_job, get_job, list_jobs, stats
from .inspect.why import why
from .maintain import (
    check_lanes,
    cleanup,
    delete_archived,
    expire,
    forget_staged,
    recover_lost,
    release_pending,
    warn_backlogs,
)
from .operations import advance_operation, begin_operation, current_snapshot, resume_operation, stop_operation
from .operator import Cancellation, Outcome, acancel, cancel, delete, pause, purge, reschedule, resume, retry, skip
from .queues import (
    create_fifo_queue,
    create_queue,
    delete_queue,
    get_queue,
    update_queue,
)
from .redrive import Redriven, redrive
from .schedules import create_schedule, delete_schedule, forget_old_runs, run_schedule, send_due, switch_schedule
from .send import asend, send
from .send_many import Source, asend_many, send_again, send_many
from .stream import AsyncJobStream, JobStream, astream, close, stream
from .wait import await_for, wait_for
from .workers import mark_worker_unresponsive, reset_running, stop_worker

__all__ = [
    "AsyncJobStream",
    "Bookmark",
    "Cancellation",
    "Claim",
    "Failure",
    "Finished",
    "Item",
    "JobStream",
    "Minute",
    "Outcome",
    "Redriven",
    "Source",
    "Stats",
    "acancel",
    "acknowledge_cancellation",
    "activity",
    "advance_operation",
    "aget_job",
    "asend",
    "asend_many",
    "astream",
    "await_for",
    "begin_operation",
    "blocked_keys",
    "cancel",
    "check_lanes",
    "cleanup",
    "close",
    "complete",
    "create_fifo_queue",
    "create_queue",
    "create_schedule",
    "current_snapshot",
    "delete",
    "delete_archived",
    "delete_queue",
    "delete_schedule",
    "expire",
    "fail",
    "fetch",
    "find_job",
    "finish_many",
    "forget_old_runs",
    "forget_staged",
    "get_job",
    "get_queue",
    "give_back",
    "list_jobs",
    "mark_unknown_stopped",
    "mark_worker_unresponsive",
    "pause",
    "purge",
    "recover_lost",
    "redrive",
    "release_pending",
    "reschedule",
    "reset_running",
    "resume",
    "resume_operation",
    "retry",
    "run_schedule",
    "send",
    "send_again",
    "send_alerts",
    "send_due",
    "send_many",
    "set_visibility",
    "skip",
    "stats",
    "stop",
    "stop_operation",
    "stop_worker",
    "stream",
    "switch_schedule",
    "touch",
    "update_queue",
    "wait_for",
    "warn_backlogs",
    "why",
]


THROUGH_THE_ENGINE = {"send", "fail", "finish_many", "skip", "send_due"}


def _explain_errors() -> None:
    """Let each verb say what to do if the database is missing, or its tables or rights.

    The engine does this for verbs that send all their statements through it.
    """
    for name in sorted({*__all__} - THROUGH_THE_ENGINE):
        verb = globals()[name]
        if isinstance(verb, FunctionType) and not iscoroutinefunction(verb):
            globals()[name] = explained(verb)
        elif isinstance(verb, SyncToAsync):
            globals()[name] = sync_to_async(explained(verb.func))


_explain_errors()
