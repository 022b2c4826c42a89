"""Parts of the statements on jobs: conditions, and the names of table parts and columns."""

from __future__ import annotations

from collections.abc import Iterable

from ...policies import ONE_RUNNING, ORDERED
from ...states import BLOCKING, DEAD, ELIGIBLE, RETRYING, RUNNING, Hold, JobState

LEAF = "JOBS_OF_QUEUE"  # a placeholder for the part of the job table that contains the queue
CLAIM_COLUMNS = "CLAIMED_COLUMNS"  # a placeholder for the columns that a claim returns

# The columns of a claimed job, and the fewer that a worker needs if no other code sees the job: all cost a third more.
CLAIMED = (
    "id", "queue_id", "name", "state", "policy", "attempt", "retry_count", "retry_limit", "priority", "seq",
    "singleton_key", "group_key", "tags", "assignee", "data", "expire_in_seconds", "heartbeat_seconds",
    "created_at", "started_at", "assigned_at", "expire_at", "crashes", "carried",
)  # fmt: skip
NEEDED = ("id", "name", "attempt", "singleton_key", "data", "expire_in_seconds", "crashes", "carried")


def listed(values: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{value}'" for value in sorted(str(value) for value in values)) + ")"


NOW = "statement_timestamp()"
IS_ELIGIBLE = f"state IN {listed(ELIGIBLE)}"
IS_FETCHABLE = f"{IS_ELIGIBLE} AND hold IS NULL"
IS_BLOCKING = f"state IN {listed(BLOCKING)} AND policy = '{ORDERED}'"
IS_BLOCKED_KEY = f"state IN {listed(DEAD)} AND policy = '{ORDERED}'"
IS_RUNNING = f"state IN {listed(RUNNING)}"
HAS_ONE_RUNNING = f"policy IN {listed(ONE_RUNNING)}"
IN_LANE = f"policy = '{ORDERED}' AND state = '{JobState.CREATED}'"
IS_TO_DELETE = "delete_at IS NOT NULL"
IS_UNTIL = f"hold = '{Hold.UNTIL}'"
IS_LANE = f"hold = '{Hold.LANE}'"
IS_RETRYING = f"state IN {listed(RETRYING)}"
NOT_SKIPPED = "name <> ALL(%(skip_names)s::text[])"  # not for a handler that the claiming worker lacks
IS_LEASED = f"state = '{JobState.ACTIVE}' AND lease_until IS NOT NULL"


def claiming(*, xmin: str) -> str:
    """The columns that every claim sets: the job is active, for a worker, in a new attempt with a new deadline.

    ``xmin`` is the oldest transaction that was running when the lane was judged; the order audit needs it.
    """
    return f"""state = '{JobState.ACTIVE}', hold = NULL, attempt = j.attempt + 1, assignee = %(worker)s,
    incarnation = %(incarnation)s, claim_number = %(number)s, assigned_at = {NOW},
    started_at = COALESCE(j.started_at, {NOW}),
    expire_at = {NOW} + j.expire_in_seconds * interval '1 second',
    heartbeat_at = CASE WHEN j.heartbeat_seconds IS NOT NULL THEN {NOW} END,
    lease_until = {NOW} + %(lease)s * interval '1 second',
    progress = NULL, progress_text = '',
    claim_xmin = COALESCE(j.claim_xmin, {xmin})"""
