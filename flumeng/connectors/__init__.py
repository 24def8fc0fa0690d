"""One folder per connected system, built on the contract in ``api``."""
