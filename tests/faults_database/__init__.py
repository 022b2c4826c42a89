"""Faults of the database, of the network and of clocks, against real workers on a server of their own."""
