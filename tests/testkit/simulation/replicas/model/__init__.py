"""Every order of the possible steps of three replicas of a journal, for a few events."""
