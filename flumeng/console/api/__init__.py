"""``/api/v1``: the JSON of the read commands, the actions, and their description."""
