"""Source ``flow``: reads the journals of another flow (``connectors/journals``)."""
