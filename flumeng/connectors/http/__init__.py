"""The source ``http``, an HTTP server, and the sink ``http``, a client."""
