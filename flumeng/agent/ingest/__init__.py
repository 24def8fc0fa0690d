"""The ingest worker: receives events, journals them, serves the journals.

Every byte goes through three hands: a source cuts what it received into blocks of whole lines
(``syslog``, ``tail``), the commit thread turns blocks into Arrow batches (``batch``), and the
journal makes them durable. ``flow`` holds the three together for one flow, ``worker`` for all.
"""
