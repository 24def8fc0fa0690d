"""Source ``exec``: output lines of a command."""
