"""Journals over the network: the Arrow Flight server and its clients."""
