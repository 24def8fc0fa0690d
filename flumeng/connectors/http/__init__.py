"""HTTP server (source ``http``) and HTTP client (sink ``http``)."""
