"""The options of each filter, a file for each."""
