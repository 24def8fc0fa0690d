"""A seeded world of hosts with replicas of one journal: the protocol's own steps, over disks, wires
and a ZooKeeper with the worst behaviour of real ones."""
