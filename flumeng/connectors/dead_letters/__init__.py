"""Source of replayed dead letters: the parts of a replay's list are partitions."""
