"""Read by each Python that has this directory in PYTHONPATH: the autoscaler, in seconds."""

from flumeng.control.planner import scaling

scaling.SAMPLE_SECONDS = 1.0
scaling.LATE_SECONDS = 4.0
