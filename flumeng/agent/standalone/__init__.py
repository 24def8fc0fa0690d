"""A ZooKeeper server, a master and a node on one host."""
