"""The handler of docs/howto/archive.md."""

from __future__ import annotations

from datetime import timedelta

from django_jobqueue import job


@job(queue="nightly", name="archive")
def archive() -> dict[str, object]:
    from django_jobqueue.pipeline import archive_jobs

    done = archive_jobs(older_than=timedelta(days=7), master="local[1,2]")
    return {"run": done.run, "jobs": done.written}
