"""Journals that survive their host: the protocol of ``flumeng.replication`` over real disks and
wires."""
