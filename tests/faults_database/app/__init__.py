"""Handlers that write down when they ran."""
