"""The sinks ``syslog`` and ``tcp``: events forwarded over TCP or TLS."""
