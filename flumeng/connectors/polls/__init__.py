"""Polling sources. A discovery task appends each due time of a schedule to a one-lane queue. The
collector that owns the lane polls in order and stores answers in files, as repeated requests may
differ. Batches read exact ranges of these files."""
