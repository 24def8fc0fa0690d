"""The decorators of Flume OG's sinks, as filters: a row for each name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flumeng_flume.findings import Log, Place
from flumeng_flume.og.tree import Call
from flumeng_flume.stream import BODY, Stream, quoted

Apply = Callable[[Call, Stream, Place, Log], None]

DURABLE = {"ackedWriteAhead": "disk", "writeAhead": "disk", "diskFailover": "spill"}
"""Decorators that say what an event is before it goes on."""
PASSIVE = {
    "nullDeco": "it does nothing",
    "ackInjector": "what is not in the sinks is sent again",
    "ackChecker": "what is not in the sinks is sent again",
    "lazyOpen": "sinks are opened when they are needed",
    "insistentOpen": "a sink that is away is tried again",
    "insistentAppend": "a batch that fails is repeated",
    "stubbornAppend": "a batch that fails is repeated",
    "batch": "batches follow from what comes",
    "unbatch": "batches follow from what comes",
    "gzip": "journals compress what they hold",
    "gunzip": "journals compress what they hold",
    "inmem": "batches follow from what comes",
    "collectorMagic": "what is not in the sinks is sent again",
    "thriftAckedWriteAhead": "what is not in the sinks is sent again",
}


def apply(call: Call, stream: Stream, place: Place, log: Log) -> None:
    """Put what a decorator does behind the stream."""
    if call.name in DURABLE:
        log.mapped(place, f"durability: {DURABLE[call.name]}")
    elif call.name in PASSIVE:
        log.mapped(place, f"nothing to set: {PASSIVE[call.name]}")
    elif (row := ROWS.get(call.name)) is not None:
        try:
            row(call, stream, place, log)
        except ValueError as error:
            log.missing(place, f"{call.name}: {error}")
    else:
        log.missing(
            place, MISSING.get(call.name, f"flumeng does not know the decorator {call.name}")
        )


def _value(call: Call, stream: Stream, place: Place, log: Log) -> None:
    name = call.text(0)
    stream.headers[name] = column = stream.set(name, call.text(1))
    if call.kwargs.get("escape") is True:
        log.missing(place, f"{column}: escapes in a value are not filled in")
    log.mapped(place, f"set: a column {column}")


def _regex(call: Call, stream: Stream, place: Place, log: Log) -> None:
    pattern, number, name = call.text(0), call.text(1, "0"), call.text(2, "regex")
    found = f"regexp_extract({BODY}, {quoted(pattern)}, {int(number)})"
    stream.headers[name] = column = stream.add(name, found)
    log.mapped(place, f"select: a column {column}")


def _regex_all(call: Call, stream: Stream, place: Place, log: Log) -> None:
    for number in range(1, len(call.args)):
        name = call.text(number)
        found = f"regexp_extract({BODY}, {quoted(call.text(0))}, {number})"
        stream.headers[name] = stream.add(name, found)
    log.mapped(place, "select: a column for each group")


def _digest(call: Call, stream: Stream, place: Place, log: Log) -> None:
    algorithm, name = call.text(0).upper().replace("-", ""), call.text(1, "digest")
    known = {"MD5": "md5(body)", "SHA1": "sha1(body)", "SHA": "sha1(body)"}
    known |= {f"SHA{bits}": f"sha2(body, {bits})" for bits in (256, 384, 512)}
    if algorithm not in known:
        raise ValueError(f"flumeng has no digest {call.text(0)}")
    stream.headers[name] = column = stream.add(name, known[algorithm])
    log.differs(place, f"select: a column {column}, in hexadecimal digits")


def _every(call: Call, stream: Stream, place: Place, log: Log) -> None:
    count = int(call.text(0, "1"))
    if count < 1:
        raise ValueError("expected a number over 0")
    stream.where(f"seq % {count} = 0")
    log.mapped(place, "where: one in so many of a journal")


def _probable(call: Call, stream: Stream, place: Place, log: Log) -> None:
    share = float(call.text(0, "1"))
    stream.where(f"mod(abs(xxhash64(journal, seq)), 1000000) < {round(share * 1_000_000)}")
    log.mapped(place, "where: by a hash of the event's identity")


def _choke(_call: Call, _stream: Stream, place: Place, log: Log) -> None:
    log.differs(place, "limit the flow with flumeng flow choke")


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
    "reservoirSampler": "say it with where, over seq or a hash",
    "bloomGen": "flumeng counts what it takes and what it writes: flumeng flow counters",
    "bloomCheck": "flumeng counts what it takes and what it writes: flumeng flow counters",
    "flakeyAppend": "it makes faults, to test: leave it out",
    "intervalDroppyAppend": "it makes faults, to test: leave it out",
    "intervalFlakeyAppend": "it makes faults, to test: leave it out",
    "mult": "it makes copies, to test: leave it out",
    "benchinject": "measure with the source generate and the sink noop",
    "benchreport": "measure with the source generate and the sink noop",
}
