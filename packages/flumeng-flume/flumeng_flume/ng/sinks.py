"""The sinks of Flume NG: a row for each type maps it and its properties."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flumeng_flume import escapes
from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Missing,
    Needless,
    Options,
    Setting,
    To,
    fill,
    millis,
    unresolved,
    words,
)
from flumeng_flume.drafts import Draft, label, valid
from flumeng_flume.findings import Log
from flumeng_flume.ng import kafka
from flumeng_flume.ng.agents import Part
from flumeng_flume.ng.hdfs import BATCH_SECONDS, HDFS, build_file_roll, build_hdfs
from flumeng_flume.stream import Stream
from flumeng_flume.tls import CLIENT_TLS, use_tls

Build = Callable[[Part, Options, Stream, Log], Options | None]


@dataclass(frozen=True)
class Row:
    """The mapping of a type: ``to`` is a sink of flumeng, ``but`` describes how it differs."""

    to: str
    answers: Answers = field(default_factory=dict)
    build: Build = lambda _part, options, _stream, _log: options
    but: str = ""


def translate(part: Part, stream: Stream, log: Log) -> Draft | None:
    """Translate a sink; None if unsupported. Columns that it needs are added to ``stream``."""
    kind = kind_of(part.type)
    row = ROWS.get(kind)
    if row is None:
        log.missing(
            part.type_location,
            UNKNOWN.get(kind)
            or f"flumeng does not know {part.type or 'a sink without a type'}: the sink python "
            "calls a function of yours with each batch",
        )
        for setting in part.settings.values():
            if not log.has(setting.location):
                log.missing(setting.location, f"belongs to {part.name}, which is not mapped")
        return None
    options = row.build(part, fill(part.settings, {**COMMON, **row.answers}, log), stream, log)
    if options is None:
        return None
    draft = Draft("sink", row.to, part.type_location, options)
    if (origin := options.origins.pop(BATCH_SECONDS, None)) is not None:
        draft.batch_seconds = (options.values["batch"]["seconds"], origin)
        options.drop(BATCH_SECONDS)
    if not valid(draft, log, stream.filters if not stream.kafka else ()):
        return None
    if row.but:
        log.differs(part.type_location, f"sink {row.to}, but {row.but}")
    else:
        log.mapped(part.type_location, f"sink {row.to}")
    return draft


def stand_in(part: Part, log: Log) -> Draft:
    """Return a sink ``files`` that keeps an unsupported sink's events until a person decides."""
    draft = Draft("sink", "files", part.type_location)
    draft.options.set("path", f"/var/lib/flumeng/imported/{label(part.agent)}/{label(part.name)}")
    log.missing(part.type_location, f"{draft.options.values['path']} keeps the events meanwhile")
    return draft


def kind_of(type_: str) -> str:
    return CLASSES.get(type_.strip(), type_.strip()).lower()


def _forward(part: Part, options: Options, _stream: Stream, log: Log) -> Options | None:
    host, number = part.first("hostname", "host"), part.first("port")
    if host is None or number is None:
        log.missing(part.type_location, "has no hostname and port")
        return None
    for setting in (host, number):
        if (name := unresolved(setting.value)) is not None:
            log.missing(setting.location, f"the value of {name} is not known: set it, import again")
            return None
        log.mapped(setting.location, "targets")
    options.set("targets", [f"{host.value}:{number.value}"], number)
    options.set("framing", "length-prefixed")
    use_tls(part.settings, options, log)
    return options


def _kafka(part: Part, options: Options, stream: Stream, log: Log) -> Options | None:
    if not kafka.brokers(part, options, log):
        return None
    topic = part.first("kafka.topic", "topic")
    if topic is None:
        options.set("topic", "default-flume-topic")
    else:
        options.set("topic", _escaped(topic, stream, log, "topic", times=""), topic)
    options.set("value", "body")
    if (key := stream.header("key")) is not None and key != "key":
        options.set("key", key)
    return options


def _elasticsearch(part: Part, options: Options, stream: Stream, log: Log) -> Options | None:
    hosts = part.first("hostNames")
    if hosts is None:
        log.missing(part.type_location, "has no hostNames")
        return None
    names = [re.sub(r":93(\d\d)$", r":92\1", word) for word in words(hosts.value)]
    urls = [name if ":" in name else f"{name}:9200" for name in names]
    options.set("hosts", [f"http://{url}" for url in urls], hosts)
    log.differs(hosts.location, "hosts: flumeng speaks HTTP, on port 9200 where 9300 was")
    index = part.first("indexName")
    name = _escaped(index, stream, log, "index") if index else "flume"
    options.set("index", f"{name}-%Y-%m-%d", index)
    return options


def _http(part: Part, options: Options, _stream: Stream, log: Log) -> Options | None:
    for name in ("contentTypeHeader", "acceptHeader"):
        if (setting := part.first(name)) is not None:
            header = {"c": "Content-Type", "a": "Accept"}[name[0]]
            if header == "Accept":
                options.values.setdefault("headers", {})[header] = setting.value
                log.mapped(setting.location, "headers: Accept")
            else:
                log.differs(setting.location, "the type of requests is application/x-ndjson")
    return options


def _escaped(setting: Setting, stream: Stream, log: Log, option: str, times: str = "YmdHM") -> str:
    text, wrong = escapes.translate(setting.value, stream, times=times)
    for why in wrong:
        log.missing(setting.location, why)
    if not wrong:
        log.mapped(setting.location, f"{option}: {text}")
    return text


_NOTHING = "flumeng sizes batches itself"
COMMON: Answers = {
    "type": Elsewhere(),
    "channel": Elsewhere(),
    "batchSize": Needless(_NOTHING),
    "batch-size": Needless(_NOTHING),
}
_FORWARD = Row(
    "tcp",
    {
        "hostname": Elsewhere(),
        "host": Elsewhere(),
        "port": Elsewhere(),
        "connect-timeout": To("timeout_seconds", millis),
        "connection-timeout": To("timeout_seconds", millis),
        "request-timeout": Needless("timeout_seconds covers the whole request"),
        "connection-reset-interval": Needless("each batch has a connection of its own"),
        "reset-connection-interval": Needless("each batch has a connection of its own"),
        "compression-type": Missing("the connection is not compressed"),
        "compression-level": Missing("the connection is not compressed"),
        "maxIoWorkers": Needless("place.collect.tasks sets the number of sending tasks"),
        "maxConnections": Needless("place.collect.tasks sets the number of sending tasks"),
        "kerberos": Missing("use TLS with a certificate of the client"),
        "client-*": Missing("use TLS with a certificate of the client"),
        "server-principal": Missing("use TLS with a certificate of the client"),
        **CLIENT_TLS,
    },
    _forward,
    "it does not speak the RPC of Flume: the hop is not needed when the sources of one flow run on "
    "the hosts and its collectors write; import the agent behind it too, or receive with the "
    "source tcp, framing length-prefixed",
)
_TABLES = "write a table with the sink delta or iceberg instead, or the store with spark or python"
ROWS: Mapping[str, Row] = {
    "hdfs": Row("files", HDFS, build_hdfs),
    "file_roll": Row(
        "files",
        {
            "sink.directory": Elsewhere(),
            "sink.rollInterval": Elsewhere(),
            "sink.serializer": Elsewhere(),
            "sink.serializer.*": Elsewhere(),
            "serializer": Elsewhere(),
            "serializer.*": Elsewhere(),
            "sink.batchSize": Needless(_NOTHING),
            "sink.pathManager": Differs("files have names of flumeng"),
            "sink.pathManager.*": Differs("files have names of flumeng"),
        },
        build_file_roll,
    ),
    "logger": Row(
        "console",
        {"maxBytesToLog": Needless("the console shortens long events")},
        but="it shows the first events of each batch, not all",
    ),
    "null": Row("noop"),
    "avro": _FORWARD,
    "thrift": _FORWARD,
    "org.apache.flume.sink.kafka.kafkasink": Row(
        "kafka",
        {
            "kafka.topic": Elsewhere(),
            "topic": Elsewhere(),
            "flumeBatchSize": Needless(_NOTHING),
            "kafka.flumeBatchSize": Needless(_NOTHING),
            "kafka.producer.acks": Differs("all replicas in sync answer"),
            "requiredAcks": Differs("all replicas in sync answer"),
            "kafka.producer.compression.type": To("compression"),
            "kafka.producer.max.request.size": Needless("the topic's own setting applies"),
            "useFlumeEventFormat": Elsewhere(),
            "defaultPartitionId": Missing("the partition follows from key"),
            "partitionIdHeader": Missing("the partition follows from key"),
            "allowTopicOverride": Differs(
                'the topic is the same for all events, unless it names a column: topic: "{topic}"'
            ),
            "topicHeader": Differs('name the column in topic: "{column}"'),
            "timestampHeader": Needless("a message has the time of its event"),
            "header.*": Differs("list the columns for message headers in headers"),
            **kafka.CONNECTION,
            "kafka.producer.*": Needless("flumeng writes Kafka with settings of its own"),
        },
        _kafka,
    ),
    "http": Row(
        "http",
        {
            "endpoint": To("url"),
            "connectTimeout": Needless("timeout_seconds covers the whole request"),
            "requestTimeout": To("timeout_seconds", millis),
            "contentTypeHeader": Elsewhere(),
            "acceptHeader": Elsewhere(),
            "defaultBackoff": Needless("a request that fails is repeated"),
            "defaultRollback": Needless("a request that fails is repeated"),
            "defaultIncrementMetrics": Needless("requests are counted"),
            "backoff.*": Differs("a request is repeated after temporary errors"),
            "rollback.*": Differs("a request is repeated after temporary errors"),
            "incrementMetrics.*": Needless("requests are counted"),
        },
        _http,
        "a request holds many events, each a line of JSON with all of its columns",
    ),
    "elasticsearch": Row(
        "elasticsearch",
        {
            "hostNames": Elsewhere(),
            "indexName": Elsewhere(),
            "indexType": Needless("Elasticsearch has no types any more"),
            "clusterName": Needless("hosts are enough"),
            "client": Needless("flumeng speaks HTTP"),
            "client.*": Needless("flumeng speaks HTTP"),
            "ttl": Missing("let index lifecycle management of the cluster delete old indexes"),
            "serializer": Differs("a document has the columns of the event"),
            "serializer.*": Differs("a document has the columns of the event"),
            "indexNameBuilder": Differs("the name is index, followed by %Y-%m-%d"),
            "indexNameBuilder.*": Differs("the name is index, followed by %Y-%m-%d"),
        },
        _elasticsearch,
    ),
}
UNKNOWN: Mapping[str, str] = {
    "hive": _TABLES,
    "hbase": _TABLES,
    "hbase2": _TABLES,
    "asynchbase": _TABLES,
    "org.apache.spark.streaming.flume.sink.sparksink": "flumeng's filters run in Spark; let other "
    "programs in Spark read files or Kafka",
    "irc": "flumeng does not speak IRC: the sink python calls a function of yours",
    "org.apache.flume.sink.solr.morphline.morphlinesolrsink": "flumeng does not speak Solr: use "
    "the sink elasticsearch, or python",
    "org.apache.flume.sink.kite.datasetsink": "write files as Parquet or Avro, or a table with "
    "delta or iceberg",
}
CLASSES: Mapping[str, str] = {
    "morphline_solr": "org.apache.flume.sink.solr.morphline.morphlinesolrsink",
    "org.apache.flume.sink.hdfs.HDFSEventSink": "hdfs",
    "org.apache.flume.sink.NullSink": "null",
    "org.apache.flume.sink.LoggerSink": "logger",
    "org.apache.flume.sink.RollingFileSink": "file_roll",
    "org.apache.flume.sink.AvroSink": "avro",
    "org.apache.flume.sink.ThriftSink": "thrift",
    "org.apache.flume.sink.hbase.HBaseSink": "hbase",
    "org.apache.flume.sink.hbase2.HBase2Sink": "hbase2",
    "org.apache.flume.sink.hbase.AsyncHBaseSink": "asynchbase",
    "org.apache.flume.sink.elasticsearch.ElasticSearchSink": "elasticsearch",
    "org.apache.flume.sink.irc.IRCSink": "irc",
    "org.apache.flume.sink.hive.HiveSink": "hive",
    "org.apache.flume.sink.http.HttpSink": "http",
}
