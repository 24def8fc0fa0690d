"""Events: their columns, identity and batches."""
