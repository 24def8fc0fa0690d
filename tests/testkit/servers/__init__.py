"""Real servers that sinks write to: for tests and benches, on any machine that can install them."""
