"""The sinks ``delta`` and ``iceberg``: tables with commits of their own."""
