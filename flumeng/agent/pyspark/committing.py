"""How a job that reads with ``spark.read`` moves its cursor, once it has what it wanted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from flumeng.agent.pyspark.connecting import connect
from flumeng.agent.pyspark.cursor import Cursor
from flumeng.agent.pyspark.options import Options
from flumeng.platform.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def next_offsets(events: DataFrame) -> dict[str, int]:
    """Journal -> the seq behind the last of these events: one job of Spark. ``events`` are read
    for it, so they should be persisted."""
    rows = events.groupBy("journal").agg({"seq": "max"}).collect()
    return {journal: seq + 1 for journal, seq in rows}


def commit(
    offsets: Mapping[str, int],
    *,
    flow: str,
    cursor: str,
    zookeeper: str = "",
) -> None:
    """Everything below ``offsets`` is done with: the cursor moves there, never back, and journals
    may let it go. ``zookeeper`` is the option of that name.

    Raises UserError when there is no such cursor, ConflictError, UnavailableError.
    """
    hosts = zookeeper or os.environ.get("FLUMENG_ZK", "")
    options = Options.parse({"zookeeper": hosts, "flow": flow, "cursor": cursor})

    if not cursor:
        raise UserError("a commit needs the name of a cursor")

    def begin() -> Mapping[str, int]:
        raise UserError(f"flow {flow} has no cursor {cursor}: read with it first")

    with closing(connect(options.zookeeper)) as store:
        taken = Cursor.take(store, options.flow, options.cursor, keep_seconds=None, begin=begin)
        taken.commit(offsets)
