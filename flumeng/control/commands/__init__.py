"""Operator commands. Each is a compare-and-set transaction with an entry in ``/audit``. A command
raises ``ConflictError`` after a concurrent change, ``UnavailableError`` without ZooKeeper."""
