"""Discovery tasks find a flow's partitions other than journals, and their ends.

A process of its own on collecting nodes, started while they have such tasks. It alone writes
``/flows/F/partitions``, fenced by its task's epoch, and serves what only it knows.
"""
