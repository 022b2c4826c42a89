"""How long a worker may take to end a process. The timeouts in the settings must leave that much room.

When a timeout of the settings is over, another worker starts the job again. By then the process of the earlier attempt
must be gone, so that two handlers of a key never run at once. System check ``jobqueue.E015`` demands this room.
"""

from __future__ import annotations

TICK_SECONDS = 0.2  # how often a supervisor checks its children
KILL_AFTER_SECONDS = 2.0  # a child that should have ended itself is killed that much later
LOOKS = 2  # a handler past its deadline is killed at the second check: at the first its slot may be half written
AIR_SECONDS = 0.8  # on a busy machine a check is late, and a large process takes a while to end
LATE_SECONDS = 0.8  # a handler may start that long after its claim, and its deadline counts from its start

# After WORKER_FENCE_SECONDS without a heartbeat, the processes of a worker are gone within this time.
FENCE_KILL_SECONDS = TICK_SECONDS + AIR_SECONDS

# After EXPIRE_GRACE_SECONDS, the process of a handler that cannot be stopped is gone within this time. A child that can
# still run Python exits before that (child.WATCH_SECONDS); if its interpreter is blocked, its supervisor kills it.
EXPIRE_KILL_SECONDS = KILL_AFTER_SECONDS + LOOKS * TICK_SECONDS + AIR_SECONDS + LATE_SECONDS

# The statements of a heartbeat may take half of WORKER_FENCE_SECONDS; the pause before them must fit into the rest.
HEARTBEATS_PER_FENCE = 2
OVERDUE_SECONDS = 300.0  # an active job past its deadline, or a schedule past its slot, needs attention after that time
