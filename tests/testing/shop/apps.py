from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests.testing.shop"
    label = "testing_shop"
