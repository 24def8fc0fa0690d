"""Elasticsearch sink. With ``id: event``, ``_id`` and index depend only on the event: repeats are
indexed once. Events wait while the cluster fails; refused ones are dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from flumeng.connectors.api.dead_letters import schema_around
from flumeng.connectors.api.sink import Attempt, Row, TaskRevision, Written
from flumeng.connectors.elasticsearch import template
from flumeng.connectors.elasticsearch.bulk import DONE_SCHEMA, IndexEvents
from flumeng.connectors.elasticsearch.bulk_body import BulkBody
from flumeng.connectors.elasticsearch.cluster import Connection, connect
from flumeng.connectors.elasticsearch.options import Elasticsearch
from flumeng.events.lazy_batch import LazyBatch
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from flumeng.platform.scrubbing import Secret


class ElasticsearchSink:
    roots = ()
    writes_at_once = False

    def __init__(self, options: Elasticsearch, task: TaskRevision) -> None:
        self.identified = options.id == "event"
        self._index = options.index
        self._bulk_body = BulkBody(options)
        self._template = template.of(options, task.flow) if options.template else None
        self._connection = Connection(
            options.hosts,
            timeout_seconds=options.timeout,
            request_bytes=options.request_bytes,
            pipeline=options.pipeline,
            compressed=options.compression == "gzip",
            api_key=_resolved(options.api_key),
            username=options.username,
            password=_resolved(options.password),
            ca=options.ca,
            certificate=options.certificate,
            key=options.key,
            fingerprint=options.fingerprint,
        )

    def probe(self) -> None:
        connect(self._connection).check_access()

    def stage(self, batch: LazyBatch, attempt: Attempt) -> LazyBatch:
        try:
            self._bulk_body.check(batch.schema)
        except UserError as error:
            raise UserError(f"elasticsearch: {error}") from error
        patience = attempt.patience_seconds
        steady = self._index if attempt.exactly_once else None
        stage = IndexEvents(self._connection, self._bulk_body, self._template, patience, steady)
        around = attempt.dead_letters.around(stage, DONE_SCHEMA)
        return batch.arrow(around, schema_around(DONE_SCHEMA))

    def written(self, rows: Sequence[Row]) -> Written:
        events, far = (sum(row[name] for row in rows) for name in DONE_SCHEMA.names)
        return Written(events, refused=far)


def _resolved(reference: str | None) -> Secret | None:
    return None if reference is None else secrets.resolve(reference)
