"""What a host keeps when its processes die: the node's home, and its journals."""

from __future__ import annotations

from dataclasses import dataclass, field

from flumeng.node.claim import Claim
from flumeng.node.events import Wanted
from flumeng.node.home import Home
from flumeng.node.known_flows import KnownFlows


@dataclass
class JournalFile:
    """Half-open: events from ``floor`` up to ``end`` are there."""

    flow: str
    floor: int = 0
    end: int = 0
    closed: bool = False


@dataclass
class Journals:
    """``writer`` is the process that has them open; one at a time. ``made`` counts them."""

    files: dict[str, JournalFile] = field(default_factory=dict)
    kept_flows: set[str] = field(default_factory=set)
    writer: object = None
    made: int = 0


class ModelHome(Home):
    """A home without files. ``data_id`` is the UUID of the data directory."""

    def __init__(self, data_id: str) -> None:
        self._id = data_id
        self.problems = {}
        self._kept: Wanted | None = None
        self._known_flows = KnownFlows()
        self._claim = Claim()
        self._cluster = ""

    def belong_to(self, cluster: str) -> None:
        assert self._cluster in ("", cluster)
        self._cluster = cluster

    def identity(self) -> str:
        return self._id

    def keep(self, wanted: Wanted) -> None:
        self._kept = wanted

    def kept(self) -> Wanted | None:
        return self._kept

    def claim(self) -> Claim:
        return self._claim

    def keep_claim(self, claim: Claim) -> None:
        self._claim = claim

    def keep_flows(self, known: KnownFlows) -> None:
        self._known_flows = known

    def known_flows(self) -> KnownFlows:
        return self._known_flows
