"""Async twins of what an async view calls.

They run the verb in Django's thread for the database, so they join a transaction opened there.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async

from .bulk import send_many
from .inspect import get_job
from .operate import cancel
from .send import send

asend = sync_to_async(send)
asend_many = sync_to_async(send_many)
acancel = sync_to_async(cancel)
aget_job = sync_to_async(get_job)
