"""The source ``exec``: lines that a command prints."""
