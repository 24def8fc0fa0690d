"""Read-only queries for operators. Unknown facts are None, unreadable records a ``problem``;
neither is an error. All raise ``UserError`` without a cluster, ``UnavailableError`` without
ZooKeeper."""
