"""The slots of schedules."""

from __future__ import annotations

# Reads the index of (schedule, slot), one schedule after the other. The ORM has no LATERAL, and would read all runs.
FORGET_RUNS = """
DELETE FROM jobqueue_schedulerun WHERE id IN (
    SELECT old.id FROM jobqueue_schedule s CROSS JOIN LATERAL (
        SELECT r.id FROM jobqueue_schedulerun r
        WHERE r.schedule_id = s.name AND r.slot < statement_timestamp() - %s * interval '1 day'
        ORDER BY r.slot LIMIT %s
    ) old LIMIT %s
)
"""
