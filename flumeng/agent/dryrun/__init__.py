"""A flow's filters in this process: to try a flow on a few lines, and to test it with cases.

No cluster is needed and sinks are not touched; events pass through the filters of a collector.
"""
