"""A gateway of the source: the real leases, and the real answers with positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from flumeng.agent.gateway.flow_watch import FlowWatch, _Flow
from flumeng.connectors.api.ranged import Reach
from flumeng.connectors.flows.flow_journals import FlowJournals
from flumeng.connectors.journals.positions import PositionWatcher
from flumeng.control.zookeeper import Store
from flumeng.journal.log.errors import BelowFloorError, NotServedError
from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseAnswer, LeaseRequest
from flumeng.platform.errors import FlumengError
from tests.testkit.simulation.environment import Process
from tests.testkit.simulation.relay.journal import ModelJournal
from zkschema import paths

if TYPE_CHECKING:
    from tests.testkit.simulation.relay.world import World

RELIEVE_SECONDS = 2.0


class _Names:
    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        return self._store.children(paths.journals())


class ModelFlowJournals(FlowJournals):
    """Lists the journals at each call, in no thread."""

    def __init__(self, flow: str, store: Store) -> None:
        self._flow = flow
        self._store = store
        self._listing = cast(Any, _Names(store))


class ModelWatcher:
    """The last known positions of the journals that their node serves."""

    def __init__(self) -> None:
        self.reaches: dict[str, Reach] = {}

    def of(self, names: Iterable[str]) -> dict[str, Reach]:
        return {name: self.reaches[name] for name in names if name in self.reaches}

    def look(self, served: Mapping[str, ModelJournal]) -> None:
        self.reaches = {
            name: Reach("n1", at.safe, floor=at.floor, closed=at.closed, full=at.full)
            for name, at in served.items()
        }


class ModelFlowWatch(FlowWatch):
    def __init__(self, store: Store, watcher: ModelWatcher, clock: Callable[[], float]) -> None:
        super().__init__(store, cast(PositionWatcher, watcher), clock)

    def _watched(self, name: str) -> _Flow:
        flow = _Flow(ModelFlowJournals(name, self._store))
        flow.registered = flow.journals.registered()
        return flow

    def _list(self, flow: _Flow) -> None:
        """The flow was listed when it was made."""


class Gateway(Process):
    """``wall``: its host's clock, which may be a day off."""

    def __init__(self, world: World, name: str, wall: Callable[[], float]) -> None:
        super().__init__(world, name)
        self._world = world
        self._wall = wall
        self.start()

    def start(self) -> None:
        self._watcher = ModelWatcher()
        self.session = self._world.connect_to(self._world.fra, self.name)
        self._leases = self._world.parts.leases(self.session, self._wall)
        self._watch = ModelFlowWatch(self.session, self._watcher, self._world.clock)

    @property
    def answers(self) -> bool:
        return self in self._world.processes and not self.paused

    def step(self) -> None:
        self.due = self._world.now + RELIEVE_SECONDS
        self._look()
        try:
            self._leases.relieve(lambda flow: self.positions(flow).positions)
        except FlumengError as error:
            self.say(f"cannot relieve journals: {error}")

    def positions(self, flow: str) -> FlowPositions:
        """Positions may be as old as the last look."""
        if self._world.random.random() < 0.7 or not self._world.rough:
            self._look()
        return self._watch.positions("fra", flow, "unseen")

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        return self._leases.renew("fra", request.site, request)

    def read(self, journal: str, start: int, end: int) -> list[int]:
        found = self._world.served.get(journal)
        if found is None:
            raise NotServedError(f"the server of journal {journal} does not answer")
        if start < found.floor:
            raise BelowFloorError(f"journal {journal} begins at {found.floor}")
        assert end <= found.safe, f"{journal} is read up to {end}, and ends at {found.safe}"
        return list(range(start, end))

    def _look(self) -> None:
        self._watcher.look(self._world.served)
