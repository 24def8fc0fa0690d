"""A world with two sites: rough times, a calm in which everything is delivered, and an end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.sites import add_site, name_cluster
from flumeng.control.zookeeper import tree
from tests.testkit.simulation.environment import Environment
from tests.testkit.simulation.relay.checks import Checks
from tests.testkit.simulation.relay.gateway import Gateway
from tests.testkit.simulation.relay.journal import ModelJournal
from tests.testkit.simulation.relay.link import Link
from tests.testkit.simulation.relay.parts import SOUND, Parts
from tests.testkit.simulation.relay.site import SiteEnsemble, SiteSession
from tests.testkit.simulation.relay.source import OwnCollector, Sender, SourceMaster, SourceNode
from tests.testkit.simulation.relay.subscriber import Collector, Discovery, Plans, Worker
from tests.testkit.simulation.relay.trouble import Trouble
from tests.testkit.simulation.session import Session

DAY = 86_400.0
ROUGH_STEPS = (60, 220)
REST_STEPS = 3_000
READ_SECONDS = 60.0
"""How rarely masters read leases."""
LATE_SECONDS = 12.0
HELD_SECONDS = 12.0
"""How long a full journal may refuse events for the sake of another site."""
WEB = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\nsinks: [noop]\n"
COPY = "flow: copy\nsources: [{flow: {site: fra, name: web}}]\nsinks: [noop]\n"


class World(Environment):
    """``fra`` is the source, and ``nyc`` the subscriber. Their clocks are a day apart."""

    def __init__(self, seed: int, parts: Parts = SOUND) -> None:
        self.parts: Final = parts
        self.fra = parts.ensemble(lambda: self.now + DAY)
        self.nyc = parts.ensemble(lambda: self.now)
        super().__init__(seed, self.fra)
        self._apply()
        self.journals: dict[str, ModelJournal] = {}
        self.keep_seconds = self.random.choice((5.0, 5.0, 20.0, 90.0))
        self._most = self.random.choice((12, 30, 80, 10_000))
        for _ in range(self.random.choice((1, 1, 2))):
            self.make_journal()
        self.checks: Final = Checks(self)
        self.node: Final = SourceNode(self)
        skew = self.random.uniform(-DAY, DAY)
        self.gateways: Final = [
            Gateway(self, "gw0", lambda: self.now + DAY + skew),
            Gateway(self, "gw1", lambda: self.now + DAY - skew),
        ]
        self.link: Final = Link(self.random, self.gateways, self._meanwhile)
        self.own: Final = OwnCollector(self)
        self.sender: Final = Sender(self)
        self.plans: Final = Plans(self)
        self.subscriber: list[Worker] = [
            *(Discovery(self, f"d{number}", number) for number in range(2)),
            *(Collector(self, f"c{number}", number) for number in range(2)),
        ]
        self._trouble = Trouble(self)
        for process in (self.node, *self.gateways, self.own, self.sender, self.plans):
            self.enter(process)
        for process in (SourceMaster(self), *self.subscriber):
            self.enter(process)

    def run(self) -> None:
        until = self.random.randint(*ROUGH_STEPS)
        while self.story.step < until:
            self.step()
        self.calm_down()
        self._come_to_rest()
        if self.random.random() < 0.5:
            self._outlive()
        else:
            self._send_on()

    def connect_to(self, ensemble: SiteEnsemble, name: str) -> Session:
        session = SiteSession(ensemble, self._network, name)
        self.sessions.append(session)
        return session

    def crash(self, process: Worker | SourceMaster) -> None:
        """The process is killed, and starts again."""
        fresh = process.fresh()
        self.leave(process)
        self.enter(fresh)
        if isinstance(fresh, Worker):
            self.subscriber = [fresh if old is process else old for old in self.subscriber]

    def make_journal(self) -> None:
        name = f"web.n1.0.{len(self.journals):08x}"
        self.journals[name] = ModelJournal(name, self._most)

    def open_journals(self) -> list[ModelJournal]:
        return [journal for journal in self.journals.values() if not journal.closed]

    @property
    def served(self) -> Mapping[str, ModelJournal]:
        """The journals that the node serves now."""
        if self.node.is_down or self.node.paused:
            return {}
        return {name: journal for name, journal in self.journals.items() if not journal.removed}

    def calm_down(self) -> None:
        self._trouble.heal_all()
        self.link.calm_down()
        super().calm_down()

    def _apply(self) -> None:
        for ensemble, name, text in ((self.fra, "fra", WEB), (self.nyc, "nyc", COPY)):
            session = SiteSession(ensemble)
            tree.init(session)
            operator = Operator(session, "test", "", 0.0)
            name_cluster(operator, name)
            if ensemble is self.nyc:
                add_site(operator, "fra", ["127.0.0.1:1"], "")
            apply_flow(operator, text)
            session.vanish()

    def _come_to_rest(self) -> None:
        """Everything is read, and the lease follows."""
        self.sender.enough = True
        self._go_on(lambda: not self.checks.unfinished(), self.checks.unfinished)

    def _outlive(self) -> None:
        """The subscriber is gone for good: its lease ends, and closed journals go."""
        for process in self.subscriber:
            self.leave(process)
        for journal in self.open_journals():
            journal.close()
        self.now += self.keep_seconds + READ_SECONDS
        until = self.now + LATE_SECONDS
        while self.now < until:
            self.step()
        if self.checks.lease_since is not None:
            raise self.story.violation("the lease outlives its time")
        self._go_on(
            lambda: all(journal.removed for journal in self.journals.values()),
            lambda: "a closed journal is kept for nobody",
        )

    def _send_on(self) -> None:
        """The link is cut for good: senders at the source do not wait for that."""
        self.link.cut = True
        self.sender.enough = False
        began, until = self.now, self.now + min(self.keep_seconds / 2, 2 * HELD_SECONDS)
        while self.now < until:
            self.step()
            for journal in self.open_journals():
                since = journal.full_since
                if since is not None and self.now - max(since, began) > HELD_SECONDS:
                    raise self.story.violation(f"{journal.name} holds its senders")

    def _go_on(self, done: Callable[[], bool], why: Callable[[], str]) -> None:
        until = self.story.step + REST_STEPS
        while not done():
            if self.story.step >= until:
                raise self.story.violation(f"does not come to rest: {why()}")
            self.step()

    def _go_wrong(self) -> None:
        self._trouble.happen()
