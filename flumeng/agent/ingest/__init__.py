"""The ingest worker: receives events, journals them, serves the journals. A source cuts received
bytes into blocks of whole lines, the commit thread turns blocks into Arrow batches (``batch``), the
journal makes them durable."""
