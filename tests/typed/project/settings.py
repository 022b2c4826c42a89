"""The settings of the sample project, for the plugin of mypy."""

SECRET_KEY = "sample"
INSTALLED_APPS = ["django_jobqueue", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}}
USE_TZ = True
