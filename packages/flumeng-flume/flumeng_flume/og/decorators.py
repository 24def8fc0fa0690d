"""The decorators of Flume OG's sinks, as filters: a row for each name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flumeng_flume.findings import Location, Log
from flumeng_flume.og.tree import Call
from flumeng_flume.stream import BODY, Stream, quoted

Apply = Callable[[Call, Stream, Location, Log], None]

DURABLE = {"ackedWriteAhead": "disk", "writeAhead": "disk", "diskFailover": "spill"}
"""Decorators that set the durability of an event."""
PASSIVE = {
    "nullDeco": "it does nothing",
    "ackInjector": "events are sent again until the sinks have them",
    "ackChecker": "events are sent again until the sinks have them",
    "lazyOpen": "sinks are opened when they are needed",
    "insistentOpen": "a sink that is away is tried again",
    "insistentAppend": "a batch that fails is repeated",
    "stubbornAppend": "a batch that fails is repeated",
    "batch": "flumeng sizes batches itself",
    "unbatch": "flumeng sizes batches itself",
    "gzip": "journals compress their events",
    "gunzip": "journals compress their events",
    "inmem": "flumeng sizes batches itself",
    "collectorMagic": "events are sent again until the sinks have them",
    "thriftAckedWriteAhead": "events are sent again until the sinks have them",
}


def apply(call: Call, stream: Stream, location: Location, log: Log) -> None:
    """Append the filters for a decorator to the stream."""
    if call.name in DURABLE:
        log.mapped(location, f"durability: {DURABLE[call.name]}")
    elif call.name in PASSIVE:
        log.mapped(location, f"nothing to set: {PASSIVE[call.name]}")
    elif (row := ROWS.get(call.name)) is not None:
        try:
            row(call, stream, location, log)
        except ValueError as error:
            log.missing(location, f"{call.name}: {error}")
    else:
        log.missing(
            location, MISSING.get(call.name, f"flumeng does not know the decorator {call.name}")
        )


def _value(call: Call, stream: Stream, location: Location, log: Log) -> None:
    name = call.text(0)
    stream.headers[name] = column = stream.set(name, call.text(1))
    if call.kwargs.get("escape") is True:
        log.missing(location, f"{column}: escapes in a value are not filled in")
    log.mapped(location, f"set: a column {column}")


def _regex(call: Call, stream: Stream, location: Location, log: Log) -> None:
    pattern, number, name = call.text(0), call.text(1, "0"), call.text(2, "regex")
    expression = f"regexp_extract({BODY}, {quoted(pattern)}, {int(number)})"
    stream.headers[name] = column = stream.add(name, expression)
    log.mapped(location, f"select: a column {column}")


def _regex_all(call: Call, stream: Stream, location: Location, log: Log) -> None:
    for number in range(1, len(call.args)):
        name = call.text(number)
        expression = f"regexp_extract({BODY}, {quoted(call.text(0))}, {number})"
        stream.headers[name] = stream.add(name, expression)
    log.mapped(location, "select: a column for each group")


def _digest(call: Call, stream: Stream, location: Location, log: Log) -> None:
    algorithm, name = call.text(0).upper().replace("-", ""), call.text(1, "digest")
    digests = {"MD5": "md5(body)", "SHA1": "sha1(body)", "SHA": "sha1(body)"}
    digests |= {f"SHA{bits}": f"sha2(body, {bits})" for bits in (256, 384, 512)}
    if algorithm not in digests:
        raise ValueError(f"flumeng has no digest {call.text(0)}")
    stream.headers[name] = column = stream.add(name, digests[algorithm])
    log.differs(location, f"select: a column {column}, in hexadecimal digits")


def _every(call: Call, stream: Stream, location: Location, log: Log) -> None:
    count = int(call.text(0, "1"))
    if count < 1:
        raise ValueError("expected a number over 0")
    stream.where(f"seq % {count} = 0")
    log.mapped(location, "where: every Nth event of a journal")


def _probable(call: Call, stream: Stream, location: Location, log: Log) -> None:
    share = float(call.text(0, "1"))
    stream.where(f"mod(abs(xxhash64(journal, seq)), 1000000) < {round(share * 1_000_000)}")
    log.mapped(location, "where: by a hash of the event's identity")


def _choke(_call: Call, _stream: Stream, location: Location, log: Log) -> None:
    log.differs(location, "limit the flow with flumeng flow choke")


ROWS: Mapping[str, Apply] = {
    "value": _value,
    "regex": _regex,
    "regexAll": _regex_all,
    "digest": _digest,
    "intervalSampler": _every,
    "probSampler": _probable,
    "choke": _choke,
}
MISSING: Mapping[str, str] = {
    "mask": "choose columns with select",
    "select": "choose columns with select",
    "format": "compute the body with select or sql",
    "split": "let split_part in select make a column of it",
    "exDate": "let to_timestamp and date_format in select make columns of it",
    "delay": "events are not delayed; batch.seconds says how long they gather",
    "reservoirSampler": "use where, over seq or a hash",
    "bloomGen": "flumeng counts received and written events: flumeng flow counters",
    "bloomCheck": "flumeng counts received and written events: flumeng flow counters",
    "flakeyAppend": "it makes faults, to test: leave it out",
    "intervalDroppyAppend": "it makes faults, to test: leave it out",
    "intervalFlakeyAppend": "it makes faults, to test: leave it out",
    "mult": "it makes copies, to test: leave it out",
    "benchinject": "measure with the source generate and the sink noop",
    "benchreport": "measure with the source generate and the sink noop",
}
