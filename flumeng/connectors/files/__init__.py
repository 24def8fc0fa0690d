"""Sink ``files``: files in a directory or an object store, in several formats."""
