"""Read-only queries. Unknown facts are None, unreadable records a ``problem``. All raise
``UserError`` without a cluster, ``UnavailableError`` without ZooKeeper."""
