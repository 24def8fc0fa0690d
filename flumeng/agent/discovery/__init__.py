"""Discovery process: finds a flow's partitions other than journals, and their ends. It alone writes
``/flows/F/partitions``, fenced by its task's epoch."""
