"""Every order of what may happen to three replicas of a journal, for a few events."""
