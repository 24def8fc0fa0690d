"""Discovery tasks: which partitions a flow has that are not journals, and how far they reach.

A process of its own on nodes that collect (``python -m flumeng.agent.discovery``), started while
the node has such tasks. It alone writes ``/flows/F/partitions``, fenced by the epoch of its task,
and serves what only it knows to whoever asks.
"""
