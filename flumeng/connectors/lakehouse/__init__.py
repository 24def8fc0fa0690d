"""Sinks ``delta`` and ``iceberg``: tables with their own commits."""
