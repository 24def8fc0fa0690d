"""How many events a second of CPU time each filter that runs in Arrow takes.

One process and one thread run the filter's own stages on events in memory, so nothing is received,
decoded or written. CPU time, not wall time, is what counts, and the best of several rounds, since
other work on the machine can only lower it. A filter that others write is one more row of CASES.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from benches import filter_steps
from flumeng.agent.collector.lines.reader import Joining
from flumeng.agent.collector.lines.rules import Rules
from flumeng.config.multiline import Multiline
from flumeng.connectors.api.ranged import Progress
from flumeng.events.lazy_batch import Stage
from flumeng.filters import formats
from flumeng.filters.options.parse import Parse
from flumeng.filters.parse import ROWS_AT_A_TIME, ParseStage
from flumeng.filters.refused_times import Bounded

EVENTS = 32_768
ROUNDS = 15
RECEIVED = datetime(2026, 11, 9, 12, tzinfo=UTC)
WITHIN_SECONDS = 7 * 86_400.0

ACCESS_REGEX = (
    r"^(?P<clientip>\S+) (?P<ident>\S+) (?P<auth>\S+) \[(?P<timestamp>[^\]]+)\] "
    r'"(?P<verb>\S+) (?P<request>\S+) HTTP/(?P<httpversion>[0-9.]+)" (?P<response>[0-9]+) '
    r'(?P<bytes>[0-9]+|-) "(?P<referrer>[^"]*)" "(?P<agent>[^"]*)"'
)

LOG_FORMAT = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent"'
)

Body = Callable[[int], str]


@dataclass(frozen=True)
class Case:
    """``stage`` over events whose bodies ``body`` makes of their numbers, about 200 bytes each."""

    body: Body
    stage: Stage


def parsed(body: Body, form: Any, **options: Any) -> Case:
    stage = ParseStage(formats.reader(Parse(form, **options)))
    return Case(body, Bounded(stage, WITHIN_SECONDS, ROWS_AT_A_TIME))


@dataclass(frozen=True)
class JoinStage:
    """Lines of one partition on their way to events, as executors read them."""

    rules: Rules

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbered = batch.append_column("seq", pa.array(range(batch.num_rows), pa.int64()))
            joining = Joining(self.rules, Progress(0, 0))
            joining.add(numbered)
            yield from joining.step(batch.num_rows, flush=True)


def _trace(n: int) -> str:
    """A line in eight begins an event."""
    if n % 8 == 0:
        return (
            f"2026-11-09 10:{n % 60:02}:15.003 ERROR [worker-{n % 50}] com.example.shop.Checkout - "
            f"order {n} of customer {n % 977} failed and is put back into the queue: "
            "java.lang.IllegalStateException: the session has expired, and nobody is there"
        )
    return (
        f"\tat com.example.shop.checkout.internal.DefaultOrderProcessingPipeline$Step{n % 8}."
        f"applyWithinTransaction(DefaultOrderProcessingPipeline.java:{n % 900}) "
        "~[checkout-service-4.11.2.jar:4.11.2-20261103.1]"
    )


def _syslog(n: int) -> str:
    return (
        f"<34>1 2026-11-09T10:{n % 60:02}:15.003Z web{n % 50} nginx {n} ID47 - upstream timed out "
        f"while reading the response header, client: 192.0.2.{n % 250}, server: shop.example, "
        f"request: GET /api/v1/items/{n} HTTP/1.1"
    )


def _json(n: int) -> str:
    return (
        f'{{"ts":"2026-11-09T10:{n % 60:02}:15.003Z","level":"info","user":"u{n}",'
        f'"msg":"request served","took_ms":{n % 500}.25,"status":200,'
        f'"path":"/api/v1/items/{n}","host":"web{n % 50}","trace":"4bf92f3577b34da6a3ce929d"}}'
    )


def _key_value(n: int) -> str:
    return (
        f'date=2026-11-09 time=10:{n % 60:02}:15 devname="FG 100" type="traffic" '
        f"srcip=192.0.2.{n % 250} srcport={n % 65_536} dstip=198.51.100.7 dstport=443 "
        f'proto=6 action=accept sentbyte={n} rcvdbyte={n % 977} service="HTTPS" policyid=12'
    )


def _logfmt(n: int) -> str:
    return (
        f"ts=2026-11-09T10:{n % 60:02}:15.003Z level=info caller=server.go:{n % 900} "
        f'msg="request served for \\"shop\\" client" method=GET path=/api/v1/items/{n} '
        f"status=200 took=12.5 bytes={n} trace=4bf92f3577b34da6 user=u{n % 500}"
    )


def _csv(n: int) -> str:
    return (
        f"2026-11-09T10:{n % 60:02}:15Z,meter-{n % 5000},{n % 977}.25,{n},ok,"
        f'"Main street 5, house {n}",'
        f"north,198.51.100.{n % 250},4bf92f3577b34da6a3ce929d0e0e4736,residential customer,"
        f'"rate ""B"" of the second half of the year, renewed"'
    )


def _access(n: int) -> str:
    return (
        f"192.0.2.{n % 250} - u{n % 50} [09/Nov/2026:10:{n % 60:02}:15 +0100] "
        f'"GET /api/v1/items/{n}?page=2 HTTP/1.1" 200 {n % 9000} "https://shop.example/cart" '
        f'"Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0"'
    )


def _cri(n: int) -> str:
    return (
        f"2026-11-09T10:{n % 60:02}:15.003123456Z stdout F level=info request {n} served for the "
        "client at /api/v1/items within the time that was asked for, after two attempts, from the "
        "second replica of the store"
    )


def _docker(n: int) -> str:
    return (
        f'{{"log":"level=info request {n} served for the client at /api/v1/items, after '
        f'two attempts, from the second replica of the store\\n","stream":"stdout",'
        f'"time":"2026-11-09T10:{n % 60:02}:15.003123456Z"}}'
    )


def _cef(n: int) -> str:
    return (
        f"CEF:0|acme|firewall|4.2|{n % 900}|connection allowed|3|src=192.0.2.{n % 250} "
        f"spt={n % 65_536} dst=198.51.100.7 dpt=443 proto=TCP act=allow "
        f"request=https://shop.example/items/{n} msg=rule 12 of the outer zone out={n}"
    )


def _leef(n: int) -> str:
    return (
        f"LEEF:2.0|acme|firewall|4.2|{n % 900}|^|src=192.0.2.{n % 250}^srcPort={n % 65_536}"
        f"^dst=198.51.100.7^dstPort=443^proto=TCP^sev=3^usrName=u{n % 50}"
        f"^msg=rule 12 of the outer zone let this connection pass^dstBytes={n}^cat=allow"
    )


CASES: dict[str, Case] = {
    "syslog": parsed(_syslog, "syslog"),
    "json": parsed(
        _json, "json", schema="ts TIMESTAMP, level STRING, user STRING, took_ms DOUBLE, status INT"
    ),
    "json_fields": parsed(
        _json, "json", fields={"user": "user", "ms": "took_ms DOUBLE", "path": "path"}
    ),
    "json_into": parsed(_json, "json", into="fields"),
    "key_value": parsed(
        _key_value,
        "key_value",
        schema="srcip STRING, dstip STRING, dstport INT, action STRING, sentbyte BIGINT",
    ),
    "key_value_into": parsed(_key_value, "key_value", into="pairs"),
    "logfmt": parsed(
        _logfmt, "logfmt", schema="ts TIMESTAMP, level STRING, msg STRING, path STRING, status INT"
    ),
    "csv": parsed(
        _csv,
        "csv",
        schema="ts TIMESTAMP, meter STRING, kwh DOUBLE, n BIGINT, state STRING, place STRING, "
        "region STRING, address STRING, trace STRING, customer STRING, rate STRING",
    ),
    "access_log": parsed(_access, "access_log"),
    "access_log_format": parsed(_access, "access_log", log_format=LOG_FORMAT),
    "cef": parsed(_cef, "cef", schema="src STRING, spt INT, dst STRING, act STRING, msg STRING"),
    "leef": parsed(_leef, "leef", schema="src STRING, srcPort INT, dst STRING, msg STRING"),
    "grok": parsed(_access, "grok", pattern="^%{COMBINEDAPACHELOG}"),
    "regex": parsed(_access, "regex", pattern=ACCESS_REGEX),
    "cri": parsed(_cri, "cri"),
    "docker": parsed(_docker, "docker"),
    "multiline": Case(_trace, JoinStage(Rules.of(Multiline(preset="java")))),
    "container_cri": Case(_cri, JoinStage(Rules.of(Multiline(container="cri")))),
    "container_docker": Case(_docker, JoinStage(Rules.of(Multiline(container="docker")))),
}


def run(only: str = "") -> dict[str, object]:
    """Events per CPU second of each filter; ``only`` one of them."""
    found: dict[str, object] = {"events": EVENTS}
    for name, case in CASES.items():
        if only in ("", name):
            found[name] = round(_measured(case.stage, _events(case.body)))
    changed = filter_steps.events(EVENTS)
    for name, stage in filter_steps.stages(changed).items():
        if only in ("", name):
            found[name] = round(_measured(stage, changed))
    if not only:
        regex, grok = found["regex"], found["grok"]
        assert isinstance(regex, int)
        assert isinstance(grok, int)
        found["grok_ratio"] = round(regex / grok, 2)
    return found


def _measured(stage: Stage, events: pa.RecordBatch) -> float:
    (first, *_) = stage(iter([events.slice(0, 1)]))
    assert "parse_error" not in str(first.to_pylist())
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in stage(iter([events])):
            pass
        seconds.append(time.process_time() - begun)
    return EVENTS / min(seconds)


def _events(body: Body) -> pa.RecordBatch:
    attrs = pa.array([[("source", "tail")]], pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([body(number).encode() for number in range(EVENTS)], pa.binary()),
            "ts": pa.array([RECEIVED] * EVENTS, pa.timestamp("us", "UTC")),
            "host": pa.array(["192.0.2.1"] * EVENTS),
            "attrs": attrs.take(pa.array([0] * EVENTS)),
        }
    )
