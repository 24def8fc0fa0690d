"""Identities of processes, their certificates and issuer. Independent of ZooKeeper and Flight."""
