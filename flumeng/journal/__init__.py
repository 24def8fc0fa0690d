"""The durable log into which a node puts received events, and its Flight server and client."""
