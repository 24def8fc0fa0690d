"""Every order of what may happen to three copies of a journal, for a few events."""
