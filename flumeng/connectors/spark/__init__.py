"""Sink ``spark``: any format that Spark writes."""
