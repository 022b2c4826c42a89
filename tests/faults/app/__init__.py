"""An app whose ``jobs.py`` holds handlers good and bad."""
