"""Other libraries that keep jobs in PostgreSQL, each with a module that sends and handles the same jobs.

Their modules are imported only in the environments in which their libraries are installed.
"""
