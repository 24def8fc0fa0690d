"""The options of each filter, a file each; light."""
