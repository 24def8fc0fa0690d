"""Source ``tail``: follows log files through rotations."""
