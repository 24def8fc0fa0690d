"""The schema of the tree in ZooKeeper: records, their bytes, and the one table of all znodes.
Standard library only. ``python -m zkschema`` prints the table as Markdown."""

from zkschema import table as paths

__all__ = ["paths"]
