"""Sinks ``first_of`` and ``one_of``: failover and load balancing over other sinks."""
