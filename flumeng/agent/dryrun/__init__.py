"""Tries a flow without a collector: runs its filters in this process on lines, test cases or events
of a running flow, and checks that its targets can be reached. Nothing is written to sinks."""
