"""Journals that survive their host: the protocol of ``flumeng.journal.replication`` over real disks
and wires."""
