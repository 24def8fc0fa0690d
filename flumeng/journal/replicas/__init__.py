"""Replicated journals: the replication protocol on real disks and networks."""
