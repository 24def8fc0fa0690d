"""The one list of every source, filter and sink.

A row names its classes as text and they are imported when used, so that a control process can
validate and assign a flow without importing what only a worker needs (pyarrow, pyspark).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Kind = Literal["source", "filter", "sink"]
Placing = Literal["pinned", "partitioned"]
"""*pinned*: a source that runs in ingest workers, on every node of its flow's place. *partitioned*:
one whose partitions a discovery task finds and collect tasks read, without a journal."""
Guarantee = Literal["acknowledging", "replayable"]
"""``acknowledging``: a source that answers its senders once their events are journaled.
``replayable``: a source that can read again what was lost before it was journaled. What a sink can
depends on its options: see ``config.sinks``."""


@dataclass(frozen=True)
class Entry:
    """One component: its option class and what runs it, each as ``"module:Class"``. Of a
    partitioned source that is its ``Finder``, see ``flumeng.connectors.api.finding``; ``placing``
    is of sources only. Of a source that asks at due times ``poll`` is what it asks, see
    ``flumeng.connectors.polls.poll``, and ``flumeng.connectors.polls.finder`` finds them."""

    kind: Kind
    name: str
    options: str
    implementation: str
    guarantees: frozenset[Guarantee] = frozenset()
    placing: Placing = "pinned"
    poll: str = ""

    def options_class(self) -> type[Any]:
        return _imported(self.options)

    def implementation_class(self) -> type[Any]:
        """Raises ``ImportError`` where the worker's own packages are not installed."""
        return _imported(self.implementation)

    def finder_class(self) -> type[Any]:
        """Of a source that is partitioned. Raises ``ImportError``, as above."""
        return _imported(SCHEDULE_FINDER if self.poll else self.implementation)

    def poll_class(self) -> type[Any]:
        """Of a poller. Raises ``ImportError``, as above."""
        return _imported(self.poll)


SCHEDULE_FINDER = "flumeng.connectors.polls.finder:ScheduleFinder"
_ENTRIES = (
    Entry(
        "source",
        "syslog",
        "flumeng.config.sources:Syslog",
        "flumeng.connectors.network.syslog:SyslogSource",
    ),
    Entry(
        "source",
        "tcp",
        "flumeng.config.sources:Tcp",
        "flumeng.connectors.network.sockets:TcpSource",
    ),
    Entry(
        "source",
        "udp",
        "flumeng.config.sources:Udp",
        "flumeng.connectors.network.sockets:UdpSource",
    ),
    Entry(
        "source",
        "http",
        "flumeng.config.sources:Http",
        "flumeng.connectors.http.source:HttpSource",
        frozenset({"acknowledging"}),
    ),
    Entry(
        "source",
        "tail",
        "flumeng.config.sources:Tail",
        "flumeng.connectors.tail.source:TailSource",
        frozenset({"replayable"}),
    ),
    Entry(
        "source",
        "exec",
        "flumeng.config.sources:Exec",
        "flumeng.connectors.exec.source:ExecSource",
        poll="flumeng.connectors.polls.exec_poll:ExecPoll",
    ),
    Entry(
        "source",
        "generate",
        "flumeng.config.sources:Generate",
        "flumeng.connectors.generate.source:GenerateSource",
        frozenset({"replayable"}),
    ),
    Entry(
        "source",
        "kafka",
        "flumeng.config.kafka_source:KafkaSource",
        "flumeng.connectors.kafka.finder:KafkaFinder",
        frozenset({"replayable"}),
        "partitioned",
    ),
    Entry(
        "source",
        "objects",
        "flumeng.config.objects_source:ObjectsSource",
        "flumeng.connectors.objects.finder:ObjectsFinder",
        frozenset({"replayable"}),
        "partitioned",
    ),
    Entry(
        "source",
        "http_poll",
        "flumeng.config.http_poll_source:HttpPollSource",
        SCHEDULE_FINDER,
        frozenset({"replayable"}),
        "partitioned",
        poll="flumeng.connectors.polls.http_poll:HttpPoll",
    ),
    Entry(
        "source",
        "sql_poll",
        "flumeng.config.sql_poll_source:SqlPollSource",
        SCHEDULE_FINDER,
        frozenset({"replayable"}),
        "partitioned",
        poll="flumeng.connectors.polls.sql_poll:SqlPoll",
    ),
    Entry(
        "source",
        "flow",
        "flumeng.config.flow_source:FlowSource",
        "flumeng.connectors.flows.finder:FlowFinder",
        frozenset({"replayable"}),
        "partitioned",
    ),
    Entry(
        "source",
        "letters",
        "flumeng.config.letters_source:LettersSource",
        "flumeng.connectors.dead_letters.finder:LettersFinder",
        frozenset({"replayable"}),
        "partitioned",
    ),
    Entry(
        "filter", "parse", "flumeng.config.filters.parse:Parse", "flumeng.filters.parse:ParseFilter"
    ),
    Entry("filter", "set", "flumeng.config.filters.set:Set", "flumeng.filters.set:SetFilter"),
    Entry(
        "filter",
        "rename",
        "flumeng.config.filters.rename:Rename",
        "flumeng.filters.rename:RenameFilter",
    ),
    Entry("filter", "drop", "flumeng.config.filters.drop:Drop", "flumeng.filters.drop:DropFilter"),
    Entry(
        "filter",
        "redact",
        "flumeng.config.filters.redact:Redact",
        "flumeng.filters.redact:RedactFilter",
    ),
    Entry("filter", "time", "flumeng.config.filters.time:Time", "flumeng.filters.time:TimeFilter"),
    Entry(
        "filter",
        "sample",
        "flumeng.config.filters.sample:Sample",
        "flumeng.filters.sample:SampleFilter",
    ),
    Entry(
        "filter", "limit", "flumeng.config.filters.limit:Limit", "flumeng.filters.limit:LimitFilter"
    ),
    Entry(
        "filter",
        "dedupe",
        "flumeng.config.filters.dedupe:Dedupe",
        "flumeng.filters.dedupe:DedupeFilter",
    ),
    Entry(
        "filter",
        "explode",
        "flumeng.config.filters.explode:Explode",
        "flumeng.filters.explode:ExplodeFilter",
    ),
    Entry(
        "filter", "where", "flumeng.config.filters.where:Where", "flumeng.filters.where:WhereFilter"
    ),
    Entry(
        "filter",
        "select",
        "flumeng.config.filters.select:Select",
        "flumeng.filters.select:SelectFilter",
    ),
    Entry(
        "filter",
        "lookup",
        "flumeng.config.filters.lookup:Lookup",
        "flumeng.filters.lookup:LookupFilter",
    ),
    Entry(
        "filter",
        "aggregate",
        "flumeng.config.filters.aggregate:Aggregate",
        "flumeng.filters.aggregate:AggregateFilter",
    ),
    Entry(
        "filter", "geoip", "flumeng.config.filters.geoip:Geoip", "flumeng.filters.geoip:GeoipFilter"
    ),
    Entry(
        "filter",
        "python",
        "flumeng.config.filters.python:Python",
        "flumeng.filters.python:PythonFilter",
    ),
    Entry("filter", "sql", "flumeng.config.filters.sql:Sql", "flumeng.filters.sql:SqlFilter"),
    Entry(
        "sink",
        "files",
        "flumeng.config.sinks.files:Files",
        "flumeng.connectors.files.sink:FilesSink",
    ),
    Entry(
        "sink",
        "elasticsearch",
        "flumeng.config.sinks.elasticsearch:Elasticsearch",
        "flumeng.connectors.elasticsearch:ElasticsearchSink",
    ),
    Entry(
        "sink",
        "delta",
        "flumeng.config.sinks.lakehouse:Delta",
        "flumeng.connectors.lakehouse.delta:DeltaSink",
    ),
    Entry(
        "sink",
        "iceberg",
        "flumeng.config.sinks.lakehouse:Iceberg",
        "flumeng.connectors.lakehouse.iceberg:IcebergSink",
    ),
    Entry(
        "sink",
        "console",
        "flumeng.config.sinks.console:Console",
        "flumeng.connectors.console.sink:ConsoleSink",
    ),
    Entry(
        "sink", "http", "flumeng.config.sinks.http:Http", "flumeng.connectors.http.sink:HttpSink"
    ),
    Entry(
        "sink", "sql", "flumeng.config.sinks.sql:Sql", "flumeng.connectors.postgres.sink:SqlSink"
    ),
    Entry(
        "sink",
        "kafka",
        "flumeng.config.sinks.kafka:Kafka",
        "flumeng.connectors.kafka.sink:KafkaSink",
    ),
    Entry(
        "sink",
        "syslog",
        "flumeng.config.sinks.forward:ForwardSyslog",
        "flumeng.connectors.forward.sink:ForwardSink",
    ),
    Entry(
        "sink",
        "tcp",
        "flumeng.config.sinks.forward:ForwardTcp",
        "flumeng.connectors.forward.sink:ForwardSink",
    ),
    Entry(
        "sink",
        "spark",
        "flumeng.config.sinks.spark:Spark",
        "flumeng.connectors.spark.sink:SparkSink",
    ),
    Entry(
        "sink",
        "python",
        "flumeng.config.sinks.python:Python",
        "flumeng.connectors.python.sink:PythonSink",
    ),
    Entry(
        "sink",
        "first_of",
        "flumeng.config.sinks.groups:FirstOf",
        "flumeng.connectors.groups.sink:FirstOfSink",
    ),
    Entry(
        "sink",
        "one_of",
        "flumeng.config.sinks.groups:OneOf",
        "flumeng.connectors.groups.sink:OneOfSink",
    ),
    Entry(
        "sink",
        "noop",
        "flumeng.config.sinks.console:Noop",
        "flumeng.connectors.console.noop:NoopSink",
    ),
)
_BY_KEY = {(entry.kind, entry.name): entry for entry in _ENTRIES}
assert len(_BY_KEY) == len(_ENTRIES), "a component is registered twice"


def entries(kind: Kind) -> tuple[Entry, ...]:
    """All components of a kind, in the order in which they are documented."""
    return tuple(entry for entry in _ENTRIES if entry.kind == kind)


def all_entries() -> tuple[Entry, ...]:
    """All components: sources, then filters, then sinks."""
    return _ENTRIES


def find(kind: Kind, name: str) -> Entry | None:
    return _BY_KEY.get((kind, name))


def get(kind: Kind, name: str) -> Entry:
    """The entry of a component of a parsed flow, which is known to exist."""
    return _BY_KEY[kind, name]


def placing(name: str, options: Any) -> Placing:
    """Of the source ``name`` with these options, which may decide about it."""
    found: Placing = getattr(options, "placing", get("source", name).placing)
    return found


def _imported(place: str) -> type[Any]:
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name)
    assert isinstance(found, type)
    return found
