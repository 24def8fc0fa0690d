"""Sinks ``syslog`` and ``tcp``: forward events over TCP or TLS."""
