"""Operator commands: each is one compare-and-set transaction with an entry in ``/audit``. All raise
``ConflictError`` when a record changes meanwhile, ``UnavailableError`` without ZooKeeper. They
state what is wanted; masters decide what runs where."""
