"""Kafka as source, sink and journal. Options, ``input`` and ``names`` load without librdkafka."""
