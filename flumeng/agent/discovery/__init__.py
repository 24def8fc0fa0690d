"""Discovery tasks find a flow's partitions other than journals, and their ends, in a process of
their own.

It alone writes ``/flows/F/partitions``, fenced by its task's epoch.
"""
