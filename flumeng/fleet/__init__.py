"""Many clusters, one inventory: what each site should hold, and how it is brought there.

A *site* is one data centre with a cluster of its own. An *inventory* is a directory that says what
each site should hold; a *push* brings sites to it in *waves*. What a push looks after are
*resources*: flows, settings and chokes of the cluster, labels and capacities of nodes, each with a
key (``flow/web``) and a value that is a text.

Rules
1. Nothing is kept here: a site's ``/push`` says which push made it what it is, and what was there
   before, so that anybody, anywhere, can go on with a push, or undo it.
2. Only what a push made or adopted is changed or removed; all else in a site is left alone.
3. What is decided is pure (``rendering``, ``comparison``, ``waves``, ``undo``): inventory and what
   was read in, actions out. Sites are read as of one moment, and written by compare-and-set on it.
4. A site that is away, or frozen, costs the others nothing.
"""
