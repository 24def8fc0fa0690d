"""Polling sources: each due time of a schedule is an item in a one-lane queue, appended by a
discovery task. The collector that owns the lane polls in order and stores answers in files, as
repeated requests may differ. Batches read exact ranges of these files."""
