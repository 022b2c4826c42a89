"""How late a worker may be when it ends a process: what the times in the settings must leave room for.

Another worker begins a job again when a time of the settings is over. By then the process of the attempt before must be
gone, so that two handlers of a key never run at once. System check ``jobqueue.E015`` demands that room.
"""

from __future__ import annotations

TICK_SECONDS = 0.2  # how often a supervisor looks at its children
KILL_AFTER_SECONDS = 2.0  # a child that should have ended itself is killed that much later
LOOKS = 2  # a handler past its time is killed when it is seen twice: the first time its slot may be half written
AIR_SECONDS = 0.8  # on a busy machine a tick comes late, and a large process takes a while to be gone
LATE_SECONDS = 0.8  # a handler may begin that long after its claim, and its time is measured from its beginning

# After WORKER_FENCE_SECONDS without a heartbeat, the processes of a worker are gone within that time.
FENCE_KILL_SECONDS = TICK_SECONDS + AIR_SECONDS

# After EXPIRE_GRACE_SECONDS, the process of a handler that cannot be stopped is gone within that time. A child that can
# still act leaves by itself before that (child.WATCH_SECONDS); one whose interpreter is held its supervisor kills.
EXPIRE_KILL_SECONDS = KILL_AFTER_SECONDS + LOOKS * TICK_SECONDS + AIR_SECONDS + LATE_SECONDS

# Statements of a heartbeat may take half of WORKER_FENCE_SECONDS; the pause before them must fit into the other half.
HEARTBEATS_PER_FENCE = 2
OVERDUE_SECONDS = 300.0  # an active job past its time, or a schedule past its slot, needs attention
