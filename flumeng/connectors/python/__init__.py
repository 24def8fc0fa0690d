"""The sink ``python``: a user's own function."""
