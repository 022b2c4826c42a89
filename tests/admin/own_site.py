"""The URLs of a project with an admin site of its own, without the default site."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.urls import path

from django_jobqueue.admin import register_pages

site = AdminSite(name="operations")
register_pages(site)

urlpatterns = [path("staff/console/", site.urls)]
