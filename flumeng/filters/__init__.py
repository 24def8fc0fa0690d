"""A file for each filter; its options are in ``options``, which needs no data library."""
