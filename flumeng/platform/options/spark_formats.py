"""Names of Spark's data sources, in flows and in the policy of a node."""

from __future__ import annotations

import re

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
"""Spark's own. Their options with a dot in the name are settings of Hadoop too."""
_FORMAT = re.compile(r"[A-Za-z_][\w.$-]*", re.ASCII)


def check_format(text: str) -> None:
    if not _FORMAT.fullmatch(text):
        raise ValueError("expected the name of a data source of Spark, like parquet or jdbc")
