"""A module for each filter. Its options are in ``options``, which imports no data library."""
