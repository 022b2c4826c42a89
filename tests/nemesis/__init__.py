"""Nemesis: real workers, senders and operators, and strikes that try to break every promise."""
