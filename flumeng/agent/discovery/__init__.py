"""Discovery process: finds a flow's partitions other than journals, and their ends. The epoch of
the discovery task fences its writes of ``/flows/F/partitions``."""
