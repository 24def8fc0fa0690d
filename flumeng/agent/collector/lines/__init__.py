"""Lines that belong together become one event, before all filters."""
