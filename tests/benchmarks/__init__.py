"""How fast it is, and whether the cost stays flat: ratios inside one run, because machines differ and are noisy.

``make bench`` runs all of it against a throw-away server with fsync on; ``make bench ARGS="speed --quick"`` a part.
"""
