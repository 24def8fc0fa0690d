"""The options of the source ``letters``, which `flumeng flow dead replay` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from flumeng.config.column_kinds import EVENT, MESSAGE, Columns
from flumeng.config.component import Guarantee, Placing, SourceOptions
from flumeng.platform.options.locations import (
    Credentials,
    check_location,
    credential_problem,
    located,
    own_path,
    shared_option,
)
from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import check_name

MOST_PARTS = 64
INPUT = "letters"
_PART = re.compile(rf"letters\.([0-9]+)\.[0-9a-z]+@{INPUT}", re.ASCII)


def part_of(partition: str) -> int:
    match = _PART.fullmatch(partition)
    assert match, partition
    return int(match[1])


@dataclass(frozen=True, kw_only=True)
class DeadLettersSource(SourceOptions):
    """Reads dead letters as the events that they were, with `replayed`. `flumeng flow dead replay`
    writes it, with the list of the letters; the flow stops by itself when it has read them.
    """

    implementation: ClassVar[str] = "flumeng.connectors.dead_letters.finder:DeadLettersFinder"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({"replayable"})

    path: str = option(
        doc="The path of the sink `files` that has written the dead letters.",
        check=check_location,
        example="/data/dead/web",
    )
    of: str = option(doc="The flow whose dead letters they are.", check=check_name, example="web")
    replay: str = option(
        doc="The name of the list of dead letters to read, below `path`.",
        check=check_name,
        example="web-replay-1-5f2a90c1",
    )
    rows: tuple[int, ...] = option(
        doc="The number of rows of each part of the list. Each part is a partition.",
        between=(1, MOST_PARTS),
        example="[1200, 80]",
    )
    messages: bool = option(
        doc="The events came from Kafka, and have the columns of its messages.", default=False
    )
    shared: bool = shared_option()
    credentials: Credentials | None = option(
        doc="Credentials for the store; by default those of the environment.", default=None
    )

    def partitions(self, among: Iterable[str] | None = None) -> dict[str, int]:
        """The parts of the list as partitions, like ``letters.3.5f2a90c1@letters``, and their rows.
        The list's id in the name keeps acks of replays apart."""
        list_id = self.replay.rpartition("-")[2]
        own = {f"letters.{n}.{list_id}@{INPUT}": rows for n, rows in enumerate(self.rows)}
        return own if among is None else {name: own[name] for name in among if name in own}

    @property
    def location(self) -> str:
        return located(self.path, self.credentials)

    @property
    def local_path(self) -> str:
        """The path if it differs by host, else empty."""
        return own_path(self.path, shared=self.shared)

    @property
    def discovery_seconds(self) -> float:
        return 3600.0

    def needs(self) -> Iterator[Need]:
        yield "output", self.path

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := credential_problem(self.path, self.credentials):
            yield "credentials", problem

    @property
    def placing(self) -> Placing:
        return "partitioned"

    @property
    def read_columns(self) -> Columns:
        return {**EVENT, **MESSAGE} if self.messages else EVENT

    @property
    def replay_list(self) -> str:
        return self.replay

    def arrival(self) -> str:
        return f"each dead letter of {self.of} that the replay has chosen is taken once"
