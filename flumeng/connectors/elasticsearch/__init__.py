"""Sink ``elasticsearch``, for Elasticsearch and OpenSearch."""
