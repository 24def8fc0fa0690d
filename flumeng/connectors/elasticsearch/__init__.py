"""The sink ``elasticsearch``, for Elasticsearch and OpenSearch."""
