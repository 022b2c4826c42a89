from books import views
from django.contrib import admin
from django.urls import path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("buy/", views.buy),
    path("buy-and-fail/", views.buy_and_fail),
    path("orders/", views.orders),
]
