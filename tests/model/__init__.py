import pytest

# So that what differs is shown.
pytest.register_assert_rewrite(
    *(f"{__name__}.{name}" for name in ("operating", "sides", "verbs", "working", "reference"))
)
