"""The tree of a cluster in memory, read and kept fresh."""
