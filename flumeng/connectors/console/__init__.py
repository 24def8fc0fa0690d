"""Sinks for trying: ``console`` prints events, ``noop`` discards them."""
