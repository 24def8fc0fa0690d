"""``/api/v1``: what the read commands print as JSON, the actions, and their description."""
