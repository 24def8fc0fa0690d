"""The options of the source ``generate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.component import Guarantee, SourceOptions
from flumeng.platform.options.option import option


@dataclass(frozen=True)
class Generate(SourceOptions):
    """Generates numbered events, to test and to measure. Attributes: `source`, `seed`.

    A body is the seed, the event's number in 16 digits and filling. Numbers begin with 0 and have
    no gaps, even after restarts.
    """

    implementation: ClassVar[str] = "flumeng.connectors.generate.source:GenerateSource"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    keeps_place: ClassVar[bool] = True
    events_per_second: int = option(
        doc="The rate; 0: as fast as the journal accepts.",
        unit="events",
        between=(0, 10**9),
        default=10,
    )
    bytes: int = option(doc="The size of a body.", between=(32, 2**20), default=200)
    count: int = option(
        doc="The total number; 0: without end.", unit="events", between=(0, 10**15), default=0
    )
    seed: int = option(
        doc="Identifies this source within its flow; each body begins with it.",
        between=(0, 10**9),
        default=0,
    )

    def claims(self) -> Iterator[tuple[str, str]]:
        yield "seed", f"generate {self.seed}"

    def arrival(self) -> str:
        return "each number is generated once"
