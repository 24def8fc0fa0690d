"""Read-only queries. In results unknown facts are None, and unreadable records have a ``problem``.
Those that read raise ``UserError`` without a cluster, ``UnavailableError`` without ZooKeeper."""
