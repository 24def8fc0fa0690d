"""A master: reads a snapshot, plans, writes with version checks, and forgets. Any number run at
once; none is elected. Masters never import source, filter or sink code."""
