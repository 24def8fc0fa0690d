"""The source ``tail``: log files, followed through rotations."""
