"""Async twins of what an async view calls.

They run the verb in Django's thread for the database, so they join a transaction opened there.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async

from .inspect import get_job
from .operator import cancel
from .send import send
from .send_many import send_many

asend = sync_to_async(send)
asend_many = sync_to_async(send_many)
acancel = sync_to_async(cancel)
aget_job = sync_to_async(get_job)
