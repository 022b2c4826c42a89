from __future__ import annotations

from django.contrib import admin
from django.urls import path

from .shop import views

urlpatterns = [
    path("", views.index, name="index"),
    path("state/", views.state, name="state"),
    path("buy/", views.buy, name="buy"),
    path("break/", views.break_it, name="break"),
    path("skip/", views.skip, name="skip"),
    path("retry/", views.retry, name="retry"),
    path("kill/", views.kill, name="kill"),
    path("export/", views.export, name="export"),
    path("jobs/<uuid:id>/", views.progress, name="progress"),
    path("admin/", admin.site.urls),
]
