"""``python -m zkschema``: the znode table as Markdown."""

import sys

from zkschema import table

sys.stdout.write(table.to_markdown())
