"""The control plane: reads and writes the tree in ZooKeeper."""
