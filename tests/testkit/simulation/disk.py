"""The disk of a host, which survives its processes: the node's home, and journals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

from flumeng.agent.node.claim import Claim
from flumeng.agent.node.data_directory import DataDirectory, KnownNames, RunMark
from flumeng.agent.node.events import Assigned
from tests.testkit.simulation.broker import Broker
from tests.testkit.simulation.bucket import Bucket
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.partition_file import PartitionFile


@dataclass
class Journals:
    """``writer`` is the process that has them open; one at a time. ``made`` counts them."""

    host: str
    files: dict[str, PartitionFile] = field(default_factory=dict)
    kept_flows: set[str] = field(default_factory=set)
    writer: Process | None = None
    made: int = 0

    def make(self, flow: str) -> str:
        """A new journal; gives its name."""
        self.made += 1
        name = f"{flow}.{self.host}.0.{self.made}"
        self.files[name] = PartitionFile(flow)
        self.kept_flows.add(flow)
        return name

    def lose(self) -> None:
        """The disk is empty."""
        self.files.clear()
        self.kept_flows.clear()


class Disks:
    """The journals of all hosts: ``of`` maps hosts to journals.

    ``broker`` is the Kafka of all, which never fails; ``bucket`` gives the objects of flows, and
    ``lane`` the content of a lane.
    """

    def __init__(self, random: Random, clock: Callable[[], float]) -> None:
        self.of: dict[str, Journals] = {}
        self.broker = Broker()
        self.lane: Callable[[str], PartitionFile | None] = lambda _: None
        self._random = random
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, flow: str) -> Bucket:
        """The objects of the flow; a new bucket is empty."""
        if flow not in self._buckets:
            self._buckets[flow] = Bucket(flow, self._random, self._clock)
        return self._buckets[flow]

    def served(self, journal: str) -> PartitionFile | None:
        """The journal, when its node serves it now."""
        for journals in self.of.values():
            if journal in journals.files:
                serves = journals.writer is not None and not journals.writer.paused
                return journals.files[journal] if serves else None
        return self.broker.file(journal)

    def file(self, journal: str) -> PartitionFile | None:
        """The journal as it is on disk, served or not."""
        own = next((file for name, file in self.files() if name == journal), None)
        return own or self.broker.file(journal) or self.lane(journal)

    def files(self) -> Iterator[tuple[str, PartitionFile]]:
        """All journals."""
        for journals in self.of.values():
            yield from journals.files.items()


class ModelDataDirectory(DataDirectory):
    """A home without files. ``data_id`` is the UUID of the data directory."""

    def __init__(self, data_id: str) -> None:
        self._id = data_id
        self.path = Path("/nonexistent")
        self.problems = {}
        self.run_mark = cast("RunMark", SimpleNamespace(is_foreign=False, set=lambda: None))
        self._kept: Assigned | None = None
        self._known: dict[str, KnownNames] = {}
        self._claim = Claim()
        self._cluster = ""

    def belong_to(self, cluster: str) -> None:
        assert self._cluster in ("", cluster)
        self._cluster = cluster

    def journals(self) -> list[str]:
        return []

    def identity(self) -> str:
        return self._id

    def keep(self, wanted: Assigned) -> None:
        self._kept = wanted

    def kept(self) -> Assigned | None:
        return self._kept

    def claim(self) -> Claim:
        return self._claim

    def keep_claim(self, claim: Claim) -> None:
        self._claim = claim

    def keep_known(self, file: str, known: KnownNames) -> None:
        self._known[file] = known

    def known_names(self, file: str) -> KnownNames:
        return self._known.get(file, KnownNames())
