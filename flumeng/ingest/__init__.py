"""The ingest worker: receives events, journals them, serves the journals.

Every byte goes through three hands: a source cuts what it received into chunks of whole lines
(``syslog``, ``tail``), the commit thread turns chunks into Arrow batches (``batch``), and the
journal makes them durable. ``flow`` holds the three together for one flow, ``worker`` for all.
"""
