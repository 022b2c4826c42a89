"""The subcommands of ``manage.py jobs``, one module per kind of subcommand."""
