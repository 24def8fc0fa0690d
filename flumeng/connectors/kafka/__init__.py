"""Kafka as an input: the partitions of topics, read in exact ranges of offsets.

Only ``names`` is light; all else here loads librdkafka.
"""
