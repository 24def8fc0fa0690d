"""The sources of Flume NG: a row for each type maps it and its properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Needless,
    Options,
    To,
    fill,
    positive,
    whole,
    words,
)
from flumeng_flume.drafts import Draft, valid
from flumeng_flume.findings import Log
from flumeng_flume.ng import file_sources, kafka, network_sources
from flumeng_flume.ng.agents import Part
from flumeng_flume.ng.source_row import Row
from flumeng_flume.stream import Stream


@dataclass
class Origin:
    """A source of Flume: the sources of flumeng for it, and the filters after them."""

    part: Part
    drafts: list[Draft]
    stream: Stream
    log: Log | None = None


def translate(part: Part, log: Log) -> Origin | None:
    """Translate a source; None when this is impossible. A source http stands in for an unknown
    type, to keep the rest of the flow."""
    kind = kind_of(part.type)
    row = ROWS.get(kind)
    if row is None:
        why = UNKNOWN.get(kind) or f"flumeng does not know {part.type or 'a source without a type'}"
        log.missing(
            part.type_location, f"{why}; a source http stands here, to which a program can send"
        )
        _leave(part, log)
        return Origin(part, [stand_in(part)], Stream())
    stream = Stream(kafka=row.to == "kafka")
    options = fill(part.settings, {**COMMON, **row.answers}, log)
    drafts = [
        Draft("source", made.name or row.to, part.type_location, made)
        for made in row.build(part, options, stream, log)
    ]
    drafts = [draft for draft in drafts if valid(draft, log)]
    if not drafts:
        if not log.has(part.type_location):
            log.missing(
                part.type_location, f"no source {row.to} could be made of it: see its properties"
            )
        return None
    if row.but:
        log.differs(part.type_location, f"source {row.to}, but {row.but}")
    else:
        log.mapped(part.type_location, f"source {drafts[0].name}")
    return Origin(part, drafts, stream)


def stand_in(part: Part) -> Draft:
    draft = Draft("source", "http", part.type_location)
    draft.options.set("listen", "0.0.0.0:8080")
    return draft


def kind_of(type_: str) -> str:
    """Return the short name of a type, also when it is written as a class."""
    return CLASSES.get(type_.strip(), type_.strip()).lower()


def _leave(part: Part, log: Log) -> None:
    for setting in part.settings.values():
        if not log.has(setting.location):
            log.missing(setting.location, f"belongs to {part.name}, which is not mapped")


def _generate(_part: Part, options: Options, _stream: Stream, _log: Log) -> list[Options]:
    options.values.setdefault("events_per_second", 0)
    return [options]


def _kafka(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    stream.headers |= {"topic": "topic", "key": "CAST(key AS STRING)", "timestamp": "ts"}
    stream.headers["partition"] = "CAST(partition AS STRING)"
    stream.headers[part.get("topicHeader", "topic")] = "topic"
    return [options] if kafka.brokers(part, options, log) else []


_NOTHING = "flumeng sizes batches itself"
COMMON: Answers = {
    "type": Elsewhere(),
    "channels": Elsewhere(),
    "channel": Needless("Flume has no such property of a source"),
    "selector.*": Elsewhere(),
    "interceptors": Elsewhere(),
    "interceptors.*": Elsewhere(),
    "batchSize": Needless(_NOTHING),
    "batchTimeout": Needless(_NOTHING),
    "batchDurationMillis": Needless(_NOTHING),
    "maxBatchSize": Needless(_NOTHING),
    "maxBackoffSleep": Needless("flumeng chooses the interval itself"),
    "backoffSleepIncrement": Needless("flumeng chooses the interval itself"),
}
_GENERATED: Answers = {
    "totalEvents": To("count", whole),
    "maxTotalEvents": To("count", whole),
    "maxSuccessfulEvents": To("count", whole, "generated events are counted"),
    "maxEventsPerSecond": To("events_per_second", whole),
    "size": To("bytes", positive),
}
ROWS: Mapping[str, Row] = {
    **network_sources.ROWS,
    **file_sources.ROWS,
    "seqgen": Row("generate", _GENERATED, _generate, "a body is the seed, the number and filling"),
    "org.apache.flume.source.stresssource": Row("generate", _GENERATED, _generate),
    "org.apache.flume.source.kafka.kafkasource": Row(
        "kafka",
        {
            "kafka.topics": To("topics", words),
            "topic": To("topics", words),
            "kafka.topics.regex": To("pattern"),
            "kafka.consumer.isolation.level": To(
                "isolation", lambda text: "committed" if text == "read_committed" else "uncommitted"
            ),
            "kafka.consumer.auto.offset.reset": To("start_from"),
            "kafka.consumer.client.id": To("client_id"),
            "kafka.consumer.group.id": Differs(kafka.OFFSETS),
            "groupId": Differs(kafka.OFFSETS),
            "migrateZookeeperOffsets": Differs(kafka.OFFSETS),
            "setTopicHeader": Needless("each event has the column topic"),
            "topicHeader": Elsewhere(),
            "header.*": Differs("headers of messages are in the column headers"),
            "useFlumeEventFormat": Elsewhere(),
            **kafka.CONNECTION,
            "kafka.consumer.*": Needless("flumeng reads Kafka with settings of its own"),
        },
        _kafka,
    ),
}
UNKNOWN: Mapping[str, str] = {
    "jms": "flumeng does not speak JMS",
    "org.apache.flume.source.twitter.twittersource": "Twitter's former API no longer exists",
    "com.cloudera.flume.source.twittersource": "Twitter's former API no longer exists",
    "org.apache.flume.source.scribe.scribesource": "flumeng does not speak Scribe",
    "org.apache.flume.source.avrolegacy.avrolegacysource": "import the Flume 0.9 that sends to it "
    "too (flumeng import flume-og)",
    "org.apache.flume.source.thriftlegacy.thriftlegacysource": "import the Flume 0.9 that sends to "
    "it too (flumeng import flume-og)",
}
CLASSES: Mapping[str, str] = {
    "org.apache.flume.source.AvroSource": "avro",
    "org.apache.flume.source.ThriftSource": "thrift",
    "org.apache.flume.source.ExecSource": "exec",
    "org.apache.flume.source.NetcatSource": "netcat",
    "org.apache.flume.source.NetcatUdpSource": "netcatudp",
    "org.apache.flume.source.SequenceGeneratorSource": "seqgen",
    "org.apache.flume.source.SyslogTcpSource": "syslogtcp",
    "org.apache.flume.source.SyslogUDPSource": "syslogudp",
    "org.apache.flume.source.MultiportSyslogTCPSource": "multiport_syslogtcp",
    "org.apache.flume.source.SpoolDirectorySource": "spooldir",
    "org.apache.flume.source.http.HTTPSource": "http",
    "org.apache.flume.source.taildir.TaildirSource": "taildir",
    "org.apache.flume.source.jms.JMSSource": "jms",
    "seq": "seqgen",
    "SEQ": "seqgen",
    "stress": "org.apache.flume.source.stresssource",
}
