"""Dead letters source: the parts of a replay's list are partitions."""
