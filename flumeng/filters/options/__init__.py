"""The options of each filter, a module each, without data libraries."""
