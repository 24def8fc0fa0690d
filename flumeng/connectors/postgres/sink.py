"""SQL sink: executors copy into PostgreSQL, in one transaction per split (``write_split``)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from flumeng.connectors.api.dead_letters import schema_around
from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.postgres.options import Sql
from flumeng.connectors.postgres.target import COUNT_SCHEMA, Server, Target
from flumeng.events import identity
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret


class SqlSink:
    roots = ()
    identified = True

    def __init__(self, options: Sql, _task: TaskRevision) -> None:
        if find_spec("adbc_driver_postgresql") is None:
            raise UserError("sql: the driver of PostgreSQL is missing: install flumeng[sql]")
        password = Secret("") if options.password is None else secrets.resolve(options.password)
        self._server = Server(
            *options.address,
            options.username,
            password,
            options.sslmode,
            options.sslrootcert,
            options.timeout_seconds,
        )
        self._options = options

    @property
    def writes_at_once(self) -> bool:
        return self._options.mode == "append"

    def probe(self) -> None:
        from flumeng.connectors.postgres.write_split import probe  # noqa: PLC0415  needs an extra

        probe(self._server, self._options)

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        from flumeng.connectors.postgres.write_split import WriteSplit  # noqa: PLC0415  needs an extra

        by_event = self._options.mode == "upsert"
        if (by_event or attempt.batch is not None) and not identity.present(batch.schema):
            raise UserError(
                "sql cannot upsert dead letters, nor append those of an exactly-once flow: their "
                "event ids are unknown"
            )
        target = Target.of(self._server, self._options, batch.schema)
        letters = attempt.dead_letters
        split = WriteSplit(target, attempt.batch, letters.place, attempt.patience_seconds)
        write = letters.around(split, COUNT_SCHEMA)
        return batch.arrow(write, schema_around(COUNT_SCHEMA))

    def written(self, rows: Sequence[Row]) -> Written:
        return Written(sum(row["events"] for row in rows))
