"""Source ``generate``: synthetic events at a given rate."""
