"""The source ``flow``: reads the journals of another flow (``connectors/journals``)."""
