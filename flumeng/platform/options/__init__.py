"""Declared options of components, and the values that users write in them."""
