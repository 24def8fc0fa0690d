"""A master: reads a snapshot, plans, writes with version checks, and forgets.

Any number of masters run at once and none is elected: each write wins or loses by itself. With all
of them dead data still flows. Masters never import source, filter or sink code.
"""
