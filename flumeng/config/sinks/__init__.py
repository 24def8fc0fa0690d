"""The options of each sink, a file for each kind of target."""
