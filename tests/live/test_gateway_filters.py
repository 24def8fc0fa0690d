"""Events behind the filters of another site's flow: what arrives, from which filters, refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flumeng.config import check_flow
from flumeng.connectors.api.ranged import Range
from flumeng.connectors.sites.input import SiteInput
from flumeng.connectors.sites.reader import SiteReader
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY, Remove
from flumeng.events.schema import EVENT_SCHEMA
from flumeng.platform.errors import CorruptError, UserError
from tests.live.test_gateways import BY, PARTITION, WEB, J, Sites
from tests.testkit.journal import numbered_events
from tests.testkit.waiting import wait_for
from zkschema import paths

COPY = "flow: copy\nsources: [{flow: {site: fra, name: web, after: filters}}]\nsinks: [noop]\n"
ODD = """filters:
  - set: {odd: "seq % 2 = 1"}
  - where: "odd"
  - drop: [host]
"""


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    with made.stack:
        yield made


def filter_with(sites: Sites, filters: str) -> None:
    apply_flow(Operator(sites.fra, *BY), WEB + filters)


def reader(sites: Sites, filters: str = "") -> SiteReader:
    made = SiteInput(sites.nyc).reader_behind(check_flow(COPY), filters)
    assert made is not None
    return made


def read(sites: Sites, start: int, end: int, made: SiteReader | None = None) -> pa.Table:
    batches = (made or reader(sites)).read(Range(PARTITION, start, end), sites.addresses)
    return pa.Table.from_batches(batches, (made or reader(sites)).schema)


def test_events_arrive_as_the_filters_leave_them(sites: Sites) -> None:
    filter_with(sites, 'filters: [{where: "seq >= 103"}, {select: [ts, "seq AS n"]}]\n')
    events = read(sites, 100, 110)
    assert events.schema.names == ["ts", "n", "journal", "seq", "replayed", "sites"]
    assert events["n"].to_pylist() == events["seq"].to_pylist() == list(range(103, 110))
    assert events["journal"].unique().to_pylist() == [f"fra:{J}"]
    assert events["sites"].unique().to_pylist() == ["fra"]
