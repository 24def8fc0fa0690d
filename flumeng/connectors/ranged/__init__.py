"""Code shared by all inputs whose partitions are read in ranges."""
