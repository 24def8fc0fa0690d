"""The source ``generate``: made-up events at a given rate."""
