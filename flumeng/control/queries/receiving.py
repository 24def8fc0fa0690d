"""Where flows keep undelivered events: in journals, or where they read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flumeng.config import SpecError, parse_flow
from flumeng.control.commands.flow_records import current_revisions
from flumeng.control.commands.subscriptions import upstream_of
from flumeng.control.zookeeper import ReadableStore, Versioned
from zkschema import paths


@dataclass(frozen=True)
class Receiving:
    """``journals``: it has sources that write journals; ``others``: it reads events kept elsewhere,
    as in Kafka or in the journals of ``flow``. The default is for unreadable flows."""

    journals: bool = True
    others: bool = False
    flow: str = ""


def receiving(store: ReadableStore, flows: Sequence[str]) -> Mapping[str, Receiving]:
    """By flow, as its current text says."""
    records = store.read_each([paths.flow(flow) for flow in flows])
    texts = current_revisions(store, dict(zip(flows, records, strict=True)))
    return {
        flow: _of(text.value.effective) if isinstance(text, Versioned) else Receiving()
        for flow in flows
        for text in (texts.get(flow),)
    }


def _of(text: str) -> Receiving:
    try:
        spec = parse_flow(text)
    except SpecError:
        return Receiving()
    return Receiving(bool(spec.pinned), bool(spec.partitioned), upstream_of(spec) or "")
