"""The listed letters of replays as an input of a collector: how far each part reaches is known."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Range, Reach, Standstill
from flumeng.connectors.dead_letters import names
from flumeng.connectors.dead_letters.options import LettersSource
from flumeng.connectors.dead_letters.reader import LettersReader

PROBE_THREADS = 2


def source_of(spec: FlowSpec) -> LettersSource | None:
    """The source of the flow that reads letters."""
    options = (part.options for part in spec.partitioned)
    return next((one for one in options if isinstance(one, LettersSource)), None)


class LettersInput:
    """See ``Input``."""

    def __init__(self) -> None:
        self._probes = ThreadPoolExecutor(PROBE_THREADS, "letters probe")

    def positions(self, wake: Callable[[], None]) -> LettersPositions:
        return LettersPositions(self._probes, wake)

    def reader(self, spec: FlowSpec) -> LettersReader | None:
        """Raises UserError when the store's credentials are nowhere."""
        source = source_of(spec)
        return None if source is None else LettersReader.of(source)


class LettersPositions:
    """See ``Positions``."""

    def __init__(self, probes: ThreadPoolExecutor, wake: Callable[[], None]) -> None:
        self._probes = probes
        self._wake = wake
        self._source: LettersSource | None = None

    def open(self, spec: FlowSpec) -> None:
        self._source = source_of(spec)

    def of(self, partitions: Collection[str]) -> dict[str, Reach]:
        if self._source is None:
            return {}
        known = names.known(self._source, partitions)
        return {name: Reach("", rows, closed=True) for name, rows in known.items()}

    def refresh(self, partitions: Collection[str]) -> None:
        """It never changes."""

    def probe(self, partition: str, address: str, start: int, end: int) -> Future[None]:
        assert self._source is not None, "nothing is read before it is opened"
        reader = LettersReader.of(self._source)

        def read() -> None:
            next(reader.read(Range(partition, start, end), address), None)

        probe = self._probes.submit(read)
        probe.add_done_callback(lambda _: self._wake())
        return probe

    def describe(self, standstill: Standstill) -> str:
        source = self._source
        whose = f"the letters of flow {source.of}" if source else standstill.partition
        return (
            f"part {names.part_of(standstill.partition)} of {whose} stands still at row "
            f"{standstill.offset}: {standstill.why}. Mend it, or delete this flow and replay the "
            "rest with `flumeng flow dead replay --again`"
        )

    def close(self) -> None:
        self._source = None
