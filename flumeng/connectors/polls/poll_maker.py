"""Makes what pollers ask, in a collector: those of databases ask through Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from flumeng.config import registry
from flumeng.config.component import Component
from flumeng.connectors.polls.input import MakePoll
from flumeng.connectors.polls.jdbc import SparkJdbc
from flumeng.connectors.polls.poll import Poll
from flumeng.connectors.polls.sql_options import SqlPollSource
from flumeng.platform.errors import UserError


def poll_maker(session: SparkSession) -> MakePoll:
    def make(part: Component[Any]) -> Poll:
        """Raises UserError."""
        try:
            found = registry.get("source", part.name).poll_class()
        except ImportError as missing:
            raise UserError(f"the source {part.name} needs a package: {missing}") from missing
        if isinstance(part.options, SqlPollSource):
            sql: Poll = found(part.options, SparkJdbc(session, part.options))
            return sql
        other: Poll = found(part.options)
        return other

    return make
