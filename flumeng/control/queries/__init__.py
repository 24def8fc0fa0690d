"""Read-only queries. In results unknown facts are None, and unreadable records have a ``problem``.
All raise ``UserError`` without a cluster, ``UnavailableError`` without ZooKeeper."""
