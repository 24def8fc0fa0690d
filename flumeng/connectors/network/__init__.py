"""The sources ``syslog``, ``tcp`` and ``udp``, and TLS for all that listen."""
