"""Filters for readers at other sites: the result of an event does not depend on how ranges are cut,
and is that of the flow's own tasks."""

from __future__ import annotations

import itertools
import random
from typing import NoReturn

import pyarrow as pa
import pytest

from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.filtering.row_filters import RowFilters
from flumeng.config import parse_flow
from flumeng.events import identity
from flumeng.events.schema import READ_SCHEMA
from flumeng.journal.serving import filtered_wire

WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
LETTERS = "dead_letters: {files: {path: /tmp/letters}}\n"
EVENTS = 200
SYSLOG = "parse: {format: syslog}"
FILTERS = {
    "parse and where": f'[{{{SYSLOG}}}, {{where: "severity <= 2"}}]',
    "failed events stay": f"[{{{SYSLOG}}}]",
    "failed events are dropped": f"[{{{SYSLOG}, on_error: drop}}]",
    "failed events are letters": f"[{{{SYSLOG}, on_error: dead-letter}}, {{drop: [facility]}}]",
    "some events pass by": f"[{{{SYSLOG}, when: \"host = 'h1'\"}}]",
    "columns": '[{rename: {host: sender}}, {select: [ts, sender, seq, "sender AS s"]}]',
    "attributes": "[{set: {attrs.b: '{host}-{seq}'}}]",
    "sample": "[{sample: {rate: 0.3}}]",
    "sample of keys": "[{sample: {rate: 0.5, by: [host]}}]",
    "json": '[{parse: {format: json, schema: "n INT, t STRING"}}, {where: "n > 3 OR n IS NULL"}]',
    "time": f"[{{{SYSLOG}}}, {{time: {{column: procid, formats: [unix]}}}}]",
}


def events() -> pa.RecordBatch:
    def body(seq: int) -> bytes:
        texts = ("not parsed", f'{{"n": {seq % 9}, "t": "x"}}', "")
        line = f"<{seq % 8}>1 2026-11-20T10:00:{seq % 60:02}Z h{seq % 3} app {seq} - - m{seq}"
        return (line if seq % 4 else texts[seq // 4 % 3]).encode()

    rows = [
        {
            "body": body(seq),
            "ts": 1_795_000_000_000_000 + seq,
            "host": f"h{seq % 3}",
            "attrs": [("a", str(seq % 5))] + ([("sites", f"s{seq}")] if seq % 7 == 0 else []),
            "journal": "web.n1.0.0a1b2c3d",
            "seq": seq,
            "replayed": False,
        }
        for seq in range(EVENTS)
    ]
    return pa.RecordBatch.from_pylist(rows, READ_SCHEMA)


def behind(filters: RowFilters, blocks: list[pa.RecordBatch]) -> pa.Table:
    found = [batch for block in blocks for batch in filtered_wire.read(filters.run(block))]
    return pa.Table.from_batches(found).combine_chunks()


def cut(whole: pa.RecordBatch, chance: random.Random) -> list[pa.RecordBatch]:
    borders = sorted({0, EVENTS, *(chance.randrange(EVENTS) for _ in range(12))})
    return [whole.slice(a, b - a) for a, b in itertools.pairwise(borders)]


@pytest.mark.parametrize("name", FILTERS)
def test_events_are_those_of_the_flow_however_ranges_are_cut(name: str) -> None:
    text = WEB + LETTERS + f"filters: {FILTERS[name]}\n"
    filters, whole = RowFilters(text), events()
    expected = behind(filters, [whole])
    for seed in range(5):
        assert behind(filters, cut(whole, random.Random(seed))).equals(expected)

    given = identity.identify(whole, 0)
    tree = FilterTree(parse_flow(text).stages, _no_spark, given.schema)
    own = pa.Table.from_batches(
        batch for output in tree.run([given]) if not output.failed for batch in output.batches
    )
    columns = [name for name in filters.schema.names if name not in filtered_wire.OWN]
    assert expected[filtered_wire.SEQ].to_pylist() == own[identity.SEQ].to_pylist()
    assert expected.select(columns).to_pylist() == own.select(columns).to_pylist()
    assert expected[filtered_wire.SITES].to_pylist() == [
        f"s{seq}" if seq % 7 == 0 else None for seq in expected[filtered_wire.SEQ].to_pylist()
    ]


def _no_spark() -> NoReturn:
    raise AssertionError("these filters need no Spark")
