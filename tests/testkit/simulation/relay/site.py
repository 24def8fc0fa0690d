"""The ZooKeeper of one site: znodes have the time of their last change, by that site's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from flumeng.control.zookeeper import Found, Version, Versioned
from tests.testkit.simulation.ensemble import Ensemble, Znode
from tests.testkit.simulation.session import Session
from zkschema.records import Record
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)


class SiteEnsemble(Ensemble):
    """``clock``: that of the servers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._times = [0.0]
        super().__init__()

    def time_of(self, zxid: int) -> float:
        return self._times[zxid]

    def _append(self, session: int, staged: Mapping[str, Znode | None]) -> None:
        if staged:
            self._times.append(self.clock())
        super()._append(session, staged)


class SiteSession(Session):
    """A session that reads the times of changes too."""

    ensemble: SiteEnsemble

    def _read(self, path: ZPath[R]) -> Found[R]:
        znode = self.ensemble.read(str(path), self.zxid)
        if znode is None:
            return None
        written = self.ensemble.time_of(znode.changed)
        version = Version(znode.version)
        return Versioned(cast(R, znode.value), version, znode.session, znode.created, written)
