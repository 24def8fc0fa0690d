"""Sources ``syslog``, ``tcp`` and ``udp``, and TLS for all listening sources."""
