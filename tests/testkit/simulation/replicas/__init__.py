"""A seeded world of hosts that hold replicas of one journal: the protocol's own steps, over disks,
wires and a ZooKeeper that do what real ones do at their worst."""
