"""How replicas of a journal stay the same: pure step functions, without clocks, threads or wires.

A step takes a state and what has happened, and gives the next state and what is to be done, in that
order. ``primary`` is the process that takes events, ``follower`` one that holds a replica,
``membership`` what ZooKeeper says of who is what. docs/replication.md tells the protocol and its
invariants.
"""
