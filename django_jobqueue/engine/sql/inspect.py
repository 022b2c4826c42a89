"""Counting what waits."""

from __future__ import annotations

from ...policies import ORDERED
from ...states import Hold
from .parts import HAS_ONE_RUNNING, IN_LANE, IS_BLOCKING, IS_FETCHABLE, IS_LANE, IS_RETRYING, IS_UNTIL


# How much waits, by queue, hold and, if {state} asks for it, state: read along the indexes of what waits, of each no
# further than so many rows. Without the state the indexes alone can tell. What an ordered queue holds lies in the index
# of its lanes, whatever its hold.
def _counted(which: str, order: str, hold: str) -> str:
    return (
        f"SELECT state, hold, count(*) AS number FROM (SELECT {{state}} AS state, {hold} AS hold FROM jobqueue_job"
        f" WHERE queue_id = q.name AND {which} ORDER BY {order} LIMIT %(most)s) seen GROUP BY state, hold"
    )


_NOT_ORDERED = f"q.policy <> '{ORDERED}' AND"
WAITING = f"""
SELECT q.name, w.state, w.hold, w.number FROM jobqueue_queue q CROSS JOIN LATERAL (
    {_counted(f"{_NOT_ORDERED} {IS_FETCHABLE}", "priority DESC, position", "NULL")}
    UNION ALL {_counted(f"{_NOT_ORDERED} {IS_UNTIL}", "start_after", f"'{Hold.UNTIL}'")}
    UNION ALL {_counted(f"{_NOT_ORDERED} {HAS_ONE_RUNNING} AND {IS_LANE}", "singleton_key", f"'{Hold.LANE}'")}
    UNION ALL {_counted(f"q.policy = '{ORDERED}' AND {IN_LANE}", "singleton_key", "hold")}
    UNION ALL {_counted(f"q.policy = '{ORDERED}' AND {IS_BLOCKING} AND {IS_RETRYING}", "singleton_key", "hold")}
) w WHERE %(queues)s::text[] IS NULL OR q.name = ANY(%(queues)s)
"""
