"""The factories of the testing kit, under the name that our own tests know."""

from django_jobqueue.testing.factories import ERROR, WORKER, JobFactory, QueueFactory

__all__ = ["ERROR", "WORKER", "JobFactory", "QueueFactory"]
