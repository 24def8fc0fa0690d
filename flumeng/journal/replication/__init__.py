"""The replication protocol of journals as pure step functions, without clocks, threads or wires.

A step maps a state and an event to the next state and the actions, in that order. ``primary`` is
the process that appends events, ``follower`` one that holds a replica, ``membership`` the record in
ZooKeeper. docs/replication.md describes the protocol and its invariants.
"""
