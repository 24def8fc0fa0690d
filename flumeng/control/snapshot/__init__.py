"""The in-memory copy of a cluster's tree."""
