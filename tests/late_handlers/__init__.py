"""An app with a handler that a web process has not imported."""
