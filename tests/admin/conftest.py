"""Users with some permissions, and clients that are logged in as them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

LOOK = ("view_job",)
Login = Callable[..., Client]


def user_with(*permissions: str, name: str = "olga", **fields: Any) -> User:
    user = User.objects.create_user(name, password="x", **{"is_staff": True, **fields})
    found = Permission.objects.filter(content_type__app_label="jobqueue", codename__in=permissions)
    assert found.count() == len(permissions)
    user.user_permissions.set(found)
    return user


@pytest.fixture
def login(db: None) -> Login:
    """``login("view_job", "retry_job")``: a client of a staff user with only these permissions."""

    def client_of(*permissions: str, **fields: Any) -> Client:
        client = Client()
        client.force_login(user_with(*permissions, **fields))
        return client

    return client_of


@pytest.fixture
def boss(db: None) -> Client:
    """A client of a superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss", password="x"))
    return client
