"""All that reads and writes the tree in ZooKeeper."""
