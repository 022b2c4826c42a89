"""Settings of a worker that is watched: OpenTelemetry's own SDK writes its spans to a file."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.observed.app"]
JOBQUEUE = {
    "CARRY": ["django_jobqueue.carriers.RequestId", "django_jobqueue.opentelemetry.Tracing"],
    "POLL_SECONDS": 0.1,
    "WORKER_HEARTBEAT_SECONDS": 0.2,
}

_spans = open(os.environ["OBSERVED_SPANS"], "a", buffering=1)  # noqa: SIM115
_exporter = ConsoleSpanExporter(out=_spans, formatter=lambda span: span.to_json(indent=None) + "\n")
_provider = TracerProvider()
_provider.add_span_processor(BatchSpanProcessor(_exporter))
trace.set_tracer_provider(_provider)
