"""An app whose migration sends jobs, as a project does that must change many rows."""
