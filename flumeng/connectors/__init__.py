"""A folder for each system that events come from or go to, over the contract in ``api``."""
