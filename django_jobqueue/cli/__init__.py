"""What ``manage.py jobs`` does, one module per kind of subcommand."""
