"""Metrics and health of a process. ``table`` lists every metric; ``Readings`` are read at each
scrape only. Nothing here reads or writes ZooKeeper."""
