"""Processes of a host: the node and its children, a standalone cluster, dry runs."""
