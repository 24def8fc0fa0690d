"""Where flows keep what is not delivered yet: what their sources receive lies in journals, and what
they read from others stays there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flumeng.config import SpecError, parse_flow
from flumeng.control.commands.subscriptions import upstream_of
from flumeng.control.zookeeper import ReadableStore, Versioned
from zkschema import paths


@dataclass(frozen=True)
class Receiving:
    """``journals``: it has sources that write journals; ``others``: sources whose events others
    keep, as Kafka does, or ``flow`` in its journals. One that cannot be read is as most are."""

    journals: bool = True
    others: bool = False
    flow: str = ""


def receiving(store: ReadableStore, flows: Sequence[str]) -> Mapping[str, Receiving]:
    """By flow, as its current text says."""
    records = store.read_each([paths.flow(flow) for flow in flows])
    known = {
        flow: paths.revision(flow, str(found.value.revision))
        for flow, found in zip(flows, records, strict=True)
        if isinstance(found, Versioned)
    }
    texts = dict(zip(known, store.read_each(list(known.values())), strict=True))
    found = {flow: texts.get(flow) for flow in flows}
    return {
        flow: _of(text.value.effective) if isinstance(text, Versioned) else Receiving()
        for flow, text in found.items()
    }


def _of(text: str) -> Receiving:
    try:
        spec = parse_flow(text)
    except SpecError:
        return Receiving()
    return Receiving(bool(spec.pinned), bool(spec.partitioned), upstream_of(spec) or "")
