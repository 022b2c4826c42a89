"""The SQL on jobs, as named constants."""
