"""Brings many clusters to what one inventory says.

A *site* is one data centre with a cluster. An *inventory* is a directory that says what each site
should hold; a *push* brings sites to it in *waves*. It manages *resources*: flows, settings,
chokes, labels and capacities, each with a key (``flow/web``) and a text as value.

Rules
1. All state is in the sites: ``/push`` says which push made a site what it is, and what was there
   before, so that anybody, anywhere, can continue or undo a push.
2. Only what a push made or adopted is changed or removed.
3. Decisions are pure (``rendering``, ``comparison``, ``waves``, ``undo``). A site is read as of one
   moment, and written by compare-and-set on it.
4. A site that is away or frozen does not delay the others.
"""
