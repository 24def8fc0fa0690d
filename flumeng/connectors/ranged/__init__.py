"""What all inputs share whose partitions are read in ranges."""
