"""The shared parts of a world's hosts: the ensemble with its settings, the disks, and the
checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from flumeng.agent.collector.ack import Acks
from flumeng.agent.collector.intents import Intents
from flumeng.agent.discovery.task import DiscoveryTask
from flumeng.connectors.objects.queue_log import QueueLog
from flumeng.control.zookeeper import tree
from flumeng.control.zookeeper.transaction import Scale
from tests.testkit.simulation.checks import Checks
from tests.testkit.simulation.delivery import Delivery
from tests.testkit.simulation.disk import Disks
from tests.testkit.simulation.ensemble import Ensemble
from tests.testkit.simulation.environment import Environment
from tests.testkit.simulation.output import Output
from tests.testkit.simulation.session import Session
from tests.testkit.simulation.stepped_master import SteppedMaster
from tests.testkit.simulation.target import Target
from zkschema import paths
from zkschema.access import ANY_OPERATOR, NAMED, Secured
from zkschema.records import MaintenanceLimits

ROOMY = Scale()
SECURED = Secured("c", groups=tuple((group, group) for group in (*NAMED, ANY_OPERATOR)))
TIGHT = Scale(secured=SECURED, limit_bytes=40_000)
"""Limits of a secured cluster whose servers take only small requests, since simulated clusters are
small."""


@dataclass(frozen=True)
class Parts:
    """The parts of a simulated cluster; a test may replace one by a broken one. Without
    ``watchdogs`` a process whose loop hangs does not end."""

    scale: Scale = ROOMY

    ensemble: type[Ensemble] = Ensemble
    acks: type[Acks] = Acks
    intents: type[Intents] = Intents
    master: type[SteppedMaster] = SteppedMaster
    discovery: type[DiscoveryTask] = DiscoveryTask
    queue_log: type[QueueLog] = QueueLog
    delivery: type[Delivery] = Delivery
    watchdogs: bool = True


SOUND = Parts()


class Cluster(Environment):
    """Every second one is ``varied``: nodes differ, hosts go for good, and the operator has
    commands for that. Every third one writes into a target that knows batches by number, and in
    half of all flows have standbys. Two of five are ``brokered``: flows read from Kafka too; one of
    five is ``queued``: they read objects. In every third one loops of masters and nodes hang.
    ``masters`` are the names of all masters, also of those that are dead."""

    def __init__(self, seed: int, parts: Parts) -> None:
        ensemble = parts.ensemble()
        ensemble.scale = parts.scale
        tree.init(Session(ensemble))
        super().__init__(seed, ensemble)
        self.parts: Final = parts
        self.varied: Final = seed % 2 == 1
        self.by_batch: Final = seed % 3 == 0
        self.brokered: Final = seed % 5 in (1, 3)
        self.queued: Final = seed % 5 == 4
        self.replicated: Final = seed % 4 in (1, 2)
        self.hanging: Final = seed % 3 == 2
        self.exactly_once: Final = self.random.random() < 0.5
        self.greedy: Final = self.random.random() < 0.5
        self.masters: Final = [f"m{number}" for number in range(self.random.choice((1, 2, 2, 3)))]
        self.disks: Final = Disks(self.random, self.clock)
        self._configure()
        self.target: Final = Target()
        self.output: Final = Output()
        self.new_queue_id: Final = map("{:08x}".format, count(1)).__next__
        self.checks: Final = Checks(
            ensemble,
            self.disks,
            self.masters,
            self.story,
            self.clock,
            target=self.target if self.by_batch else None,
            output=self.output,
            exactly_once=self.exactly_once,
        )
        self.disks.lane = self.checks.lane

    def journals_grew(self) -> None:
        for process in self.processes:
            process.journals_grew()

    def _configure(self) -> None:
        session = Session(self.ensemble)
        found = session.read(paths.cluster())
        assert found is not None
        settings = replace(
            found.value,
            grace_seconds=self.random.choice((0.0, 0.0, 3.0)),
            drain_limit_seconds=self.random.choice((5.0, 20.0, 60.0)),
            maintenance_limits=self._limits(),
        )
        session.write(paths.cluster(), settings, found.version)
        session.close()

    def _limits(self) -> MaintenanceLimits:
        if not self.varied:
            return MaintenanceLimits()
        return MaintenanceLimits(nodes=self.random.choice((2, 2, 5)), enter=0.4, leave=0.25)
