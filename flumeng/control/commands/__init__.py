"""What an operator can change: each change is one compare-and-set transaction on the store.

The command line, the web page and tests call the same functions. Each change leaves an entry in
``/audit`` within its own transaction: ``author`` is who, ``reason`` why, ``now`` when, in seconds
since the epoch, which is shown and never decided by. Nothing here decides what runs where: masters
do, from what is written here.
"""
