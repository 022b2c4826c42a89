"""What happens when processes die, hang or misbehave: the real ``runjobs``, killed for real."""
