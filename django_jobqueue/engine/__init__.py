"""How it works: transactions, locks, lanes, transitions and the SQL below the verbs of ``services``."""
