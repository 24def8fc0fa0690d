"""Discovery process: finds a flow's partitions other than journals, and their ends. No other
process writes ``/flows/F/partitions``, which is fenced by the epoch of the discovery task."""
