"""The filters. Their options are in ``options``, which imports no data library."""
