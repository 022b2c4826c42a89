"""Handlers of the nemesis."""
