from __future__ import annotations

from django.contrib import admin
from django.urls import path

from .shop import views

urlpatterns = [
    path("", views.index, name="index"),
    path("buy/", views.buy, name="buy"),
    path("export/", views.export, name="export"),
    path("jobs/<uuid:id>/", views.progress, name="progress"),
    path("admin/", admin.site.urls),
]
