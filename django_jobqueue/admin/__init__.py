"""The operator's screens in Django's admin, one module each. They look, and they call verbs; they never write."""

from .blocked_keys import BlockedKeyAdmin
from .jobs import JobAdmin
from .operations import OperationAdmin

__all__ = ["BlockedKeyAdmin", "JobAdmin", "OperationAdmin"]
