"""Runs a flow's filters in this process, to try a flow on a few lines or test it with cases. No
cluster is needed and sinks are not touched."""
