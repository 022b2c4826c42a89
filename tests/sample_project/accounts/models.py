from django.contrib.auth.models import AbstractUser


class User(AbstractUser):
    """A user model of the project's own, so that nothing can rely on auth.User."""
