"""The contract of sources, of inputs that are read in ranges, and of sinks."""
