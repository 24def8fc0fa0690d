"""The ZooKeeper of one site: znodes have the time of their last change, by that site's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from flumeng.control.zookeeper import Found, Versioned
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
        found = super()._read(path)
        znode = self.ensemble.read(str(path), self.zxid)
        if not isinstance(found, Versioned) or znode is None:
            return found
        return replace(found, written=self.ensemble.time_of(znode.changed))
