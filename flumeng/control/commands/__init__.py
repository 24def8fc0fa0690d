"""What an operator can change: each change is one compare-and-set transaction on the store.

The command line, the web page and tests call the same functions. Each takes an ``Operator``, and
leaves an entry in ``/audit`` within its own transaction. Nothing here decides what runs where:
masters do, from what is written here.
"""
