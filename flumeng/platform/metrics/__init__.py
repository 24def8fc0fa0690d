"""Metrics and health of a process. ``table`` lists every metric; values are read only at a scrape.
This package never accesses ZooKeeper."""
