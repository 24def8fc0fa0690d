"""A flow's filters in this process: to try a flow on a few lines, and to test it with cases.

No cluster is asked, nothing is journaled, and sinks are not touched. What comes out is what the
flow's sinks would be given: events pass through the same filters, made in the same way, and what
only Spark can compute is computed by a Spark with the collector's settings.
"""
