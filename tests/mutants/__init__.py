"""Mutation tests of the SQL, which mutation tools see only as text: see ``__main__``."""
