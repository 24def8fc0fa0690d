"""Dead letters as an input: the parts of a replay's list are partitions."""
