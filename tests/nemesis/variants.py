"""The queues of a run: every kind there is, each with what it promises."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .checker import Rules

ORDERED = Rules(serial=True, ordered=True, blocks=True)
ONE_AT_A_TIME = Rules(serial=True)


@dataclass(frozen=True)
class Variant:
    queue: str
    keys: int
    rules: Rules
    handler: str = "work"
    weight: int = 4  # how often it is sent to
    fifo: bool = False
    grouped: bool = False
    seconds: tuple[float, float] = (0.0, 0.3)  # that handlers take
    delays: bool = False  # some jobs are sent with a delay
    passes: bool = True  # and may then be passed by
    options: dict[str, Any] = field(default_factory=dict)
    by: str = "workers"  # or "stream", or "schedule"


def _fifo(queue: str, keys: int, rules: Rules = ORDERED, **given: Any) -> Variant:
    return Variant(queue, keys, rules, fifo=True, **given)


VARIANTS = {
    variant.queue: variant
    for variant in (
        _fifo("one-key", 1, seconds=(0.0, 0.05), weight=2),
        _fifo("pass", 40, delays=True),
        _fifo("block", 40, delays=True, passes=False, options={"delayed_head": "block"}),
        _fifo("many-keys", 500, seconds=(0.0, 0.02), weight=8),
        _fifo("long", 3, seconds=(1.0, 3.0), weight=1),
        _fifo("atomic", 40, Rules(serial=True, ordered=True, blocks=True, atomic=True), handler="effect"),
        _fifo("async", 40, handler="wait"),
        _fifo("own", 40, options={"partition": True}),
        _fifo("expiring", 3, handler="stubborn", weight=1, seconds=(0.0, 0.3)),
        _fifo("skip", 40, Rules(serial=True, ordered=True), options={"on_exhausted": "skip"}),
        Variant("singleton", 10, ONE_AT_A_TIME, options={"policy": "singleton"}),
        Variant("stately", 10, Rules(serial=True, one_waits=True), options={"policy": "stately"}),
        Variant("short", 10, Rules(one_waits=True), options={"policy": "short"}),
        Variant("exclusive", 10, Rules(serial=True, one_unfinished=True), options={"policy": "exclusive"}),
        Variant("keyed", 10, Rules(serial=True, one_unfinished=True)),
        Variant("grouped", 10, replace(ORDERED, batched=True), grouped=True, seconds=(0.0, 0.05)),
        Variant("scratch", 0, Rules(), seconds=(0.0, 0.05)),  # that operators purge
        Variant("free", 0, Rules(), seconds=(0.0, 0.01), weight=0),  # must never wait
        Variant("streamed", 0, Rules(), by="stream", seconds=(0.0, 0.05)),
        Variant("ticking", 0, Rules(), by="schedule", weight=0),
    )
}
RULES = {queue: variant.rules for queue, variant in VARIANTS.items()}
WORKED_ON = tuple(queue for queue, variant in VARIANTS.items() if not variant.grouped and variant.by != "stream")
STREAMS = {"stream-1": 5, "stream-2": 2}  # name → capacity
SCHEDULE = "tick"
EXPIRES_AFTER = 2
