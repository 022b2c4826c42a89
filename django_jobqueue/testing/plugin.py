"""The pytest plugin: registers itself when django-jobqueue is installed."""
