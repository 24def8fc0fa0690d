"""Trial sinks: ``console`` prints events, ``noop`` discards them."""
