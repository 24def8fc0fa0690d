"""Multi-cluster deployment: brings many clusters to the state of one inventory.

A *site* is one data centre with a cluster. An *inventory* is a directory with the wanted content of
each site; a *push* applies it in *waves*. It manages *resources*: flows, settings, chokes, labels
and capacities, each with a key (``flow/web``) and a text as value. Rules:

1. All state is in the sites: ``/push`` holds the last push and the values before it, so that a push
   can be continued or undone from anywhere.
2. A push changes and removes only resources that a push made or adopted, and the chokes of a flow
   that it deletes.
3. Decisions are pure. A site is read as a consistent copy, and written by compare-and-set on it.
4. An unreachable or frozen site does not delay the others.
"""
