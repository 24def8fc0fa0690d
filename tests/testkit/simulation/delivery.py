"""How a modelled collector writes a batch and moves its acks, where its target knows no batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flumeng.agent.collector.ack import Acks
from flumeng.connectors.api.ranged import Range
from flumeng.control.zookeeper import Write
from tests.testkit.simulation.output import Events, Output


class Delivery:
    """``commit`` is the record that publishes staged events; without one they are published before
    the acks move."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def deliver(
        self,
        acks: Acks,
        ranges: Sequence[Range],
        events: Events,
        commit: Sequence[Write],
        also: Sequence[Write],
    ) -> Iterator[None]:
        """Yields in between, where others may act."""
        self.write(events, commit)
        if events:
            yield
        acks.advance(ranges, also=[*commit, *also])

    def write(self, events: Events, commit: Sequence[Write]) -> None:
        if commit:
            self._output.stage(str(commit[0].path), events)
        else:
            self._output.show(events)
