"""The replication protocol of journals as pure step functions, without clocks, threads or wires.

A step is a function of a state and an event; it returns the next state and a list of actions.
``primary`` is the process that appends events, ``follower`` one that holds a replica,
``membership`` the record in ZooKeeper. docs/explanation/replication.md describes the protocol.
Its invariants:

- I1: An event is answered when each replica in sync has synced it or is confirmed out of sync.
- I2: A local checkpoint counts synced events.
- I3: Only the primary gives out seqs, without gaps.
- I4: Each primary, and each start of one, has its own term.
- I5: A replica refuses ended terms, and first stores a later one.
- I6: A primary that learns of a later term answers nothing.
- I7: The global checkpoint never passes a local one in sync, never falls, and stands while one is
  unknown.
- I8: A joining replica counts before the change is requested.
- I9: Replicas are equal below the global checkpoint.
- I10: Only a replica in sync is promoted; otherwise an operator begins another *lineage*.
- I11: A replica keeps its end until it knows the new primary's log, and cuts before it counts.
- I12: A replica catches up, counts, and then is in sync.
- I13: Histories show where logs differ, never checkpoints.
- I14: A replica catches up by seq in one lineage, or begins again at the primary's floor.
- I15: Below ``min_in_sync``, nothing is taken or answered.
- I24: Readers see only events below the global checkpoint.
"""
