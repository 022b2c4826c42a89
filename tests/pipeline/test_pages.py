"""The pages about Spark are true: their examples run."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.test_docs import PAGES, Reader, blocks, needs_spark


@pytest.mark.parametrize("page", [page for page in PAGES if needs_spark(page)], ids=lambda page: page.stem)
def test_the_examples_run(page, spark, lake):
    from django_jobqueue.pipeline.reading import conninfo_of

    Path(lake).mkdir()
    with ExitStack() as settings:
        reader = Reader(page, settings, lake=lake, dsn=conninfo_of("default"), password="")
        for block in blocks(page):
            reader.run(block)
