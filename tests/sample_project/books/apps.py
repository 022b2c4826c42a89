from django.apps import AppConfig


class BooksConfig(AppConfig):
    name = "books"

    def ready(self) -> None:
        from . import signals  # noqa: F401
