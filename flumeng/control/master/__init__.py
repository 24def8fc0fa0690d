"""The master: reads a snapshot, plans, writes with version checks. Any number run at once, without
leader election. Masters never import source, filter or sink code."""
