from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .kit import JobQueueKit, Mode

if TYPE_CHECKING:
    import unittest

    _Base = unittest.TestCase
else:
    _Base = object


class JobQueueTestMixin(_Base):
    """``class OrderTests(JobQueueTestMixin, TestCase)``: every test has ``self.jobqueue``."""

    jobqueue_mode: ClassVar[Mode] = "manual"
    jobqueue: JobQueueKit

    def setUp(self) -> None:
        super().setUp()
        self.jobqueue = self.enterContext(JobQueueKit(self.jobqueue_mode))
