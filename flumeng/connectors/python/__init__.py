"""Sink ``python``: a user's own function."""
