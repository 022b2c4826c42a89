"""The URLs of a project with the default admin site and one of its own."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from .own_site import urlpatterns as own

urlpatterns = [path("admin/", admin.site.urls), *own]
