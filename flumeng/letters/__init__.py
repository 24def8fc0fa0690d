"""Dead letters that lie in files: found, counted, shown, listed for a replay, and deleted.

The sink ``files`` writes them in the commit of their batch and never changes them. Whoever reads
them here has the store's credentials, and needs no collector.
"""
