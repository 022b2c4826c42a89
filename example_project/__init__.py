"""A small shop that uses django_jobqueue, and the programs that demonstrate it."""
