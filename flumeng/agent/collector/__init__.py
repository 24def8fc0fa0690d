"""Reads partitions in exact ranges, runs filters and sinks on Spark, and acks durable events."""
