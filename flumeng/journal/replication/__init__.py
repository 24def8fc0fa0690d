"""The replication protocol of journals as pure step functions, without clocks, threads or wires.

A step is a function of a state and an event; it returns the next state and a list of actions.
``primary`` is the process that appends events, ``follower`` one that holds a replica,
``membership`` the record in ZooKeeper. docs/explanation/replication.md describes the
protocol and its invariants.
"""
