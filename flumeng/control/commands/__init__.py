"""Operator commands: each is a compare-and-set transaction with an entry in ``/audit``. They raise
``ConflictError`` for a concurrent change and ``UnavailableError`` without ZooKeeper."""
