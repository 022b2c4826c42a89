"""A small shop that uses django_jobqueue, and the demo."""
