"""The picture of the cluster that all viewers share: taken in the background, never by a viewer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flumeng.console.asking import Asking
from flumeng.console.history import History
from flumeng.console.watched_copy import Cache, WatchedCopy
from flumeng.control.queries import health, history
from flumeng.control.queries.counters import task_counts
from flumeng.control.queries.flow_graph import Rates, rates_of
from flumeng.control.queries.flow_rates import FlowRates, RateMeter
from flumeng.control.queries.history import AuditRow
from flumeng.control.queries.overview import FlowRow, NodeRow
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import FlumengError, UnavailableError

log = logging.getLogger(__name__)

SECONDS = 2.0
"""Between pictures while somebody looks."""
IDLE_SECONDS = 10.0
LOOKED_SECONDS = 30.0
"""Somebody counts as looking for this long after a request."""
SHARE = 4
"""A picture that takes long is taken less often: this many times its duration apart."""
CHANGES_SHOWN = 10
CHANGES_SEARCHED = 200
"""The newest changes, among which a pause is looked for."""


@dataclass(frozen=True)
class Since:
    """When a cause was seen first, in seconds since the epoch. ``or_longer``: it was there when the
    console began to look."""

    at: float
    or_longer: bool


@dataclass(frozen=True)
class Picture:
    """The cluster at one moment. ``at``: seconds since the epoch. ``number`` rises with each one.
    ``status``: as ``health.status``. ``rates`` and ``since`` by flow and by a cause's ``about``.
    ``away_since``: since when ZooKeeper has not answered; the rest is then what nodes answered now
    and ZooKeeper said before. ``problem``: why no picture could be taken; the rest is older.
    ``pauses``: who paused a flow, and why, by suspended flow. ``accounts``: of the journals at each
    address that answered."""

    number: int = 0
    at: float = 0.0
    took_seconds: float = 0.0
    status: Mapping[str, Any] = field(
        default_factory=lambda: {
            "health": "unknown",
            "causes": [],
            "maintenance": False,
            "masters": [],
            "nodes": {"live": 0, "registered": 0},
            "flows": [],
            "links": [],
            "leases": [],
        }
    )
    flows: Sequence[FlowRow] = ()
    nodes: Sequence[NodeRow] = ()
    rates: Mapping[str, FlowRates] = field(default_factory=dict)
    audit: Sequence[AuditRow] = ()
    pauses: Mapping[str, AuditRow] = field(default_factory=dict)
    since: Mapping[str, Since] = field(default_factory=dict)
    away_since: float | None = None
    problem: str = "no picture of the cluster has been taken yet"
    accounts: Mapping[str, Mapping[str, Account]] = field(default_factory=dict, repr=False)

    @cached_property
    def flow_names(self) -> frozenset[str]:
        return frozenset(flow.flow for flow in self.flows)

    @cached_property
    def node_names(self) -> frozenset[str]:
        return frozenset(node.node for node in self.nodes)

    @cached_property
    def journal_names(self) -> frozenset[str]:
        return frozenset(name for accounts in self.accounts.values() for name in accounts)

    def accounts_at(self, address: str) -> Mapping[str, Account]:
        """Return what the address answered. Raises UnavailableError if it did not. As
        ``journals.Ask``, so that no viewer waits for a silent node."""
        if address not in self.accounts:
            raise UnavailableError(f"{address} did not answer when it was last asked")
        return self.accounts[address]


class Pictures:
    """Takes pictures in a thread between ``start`` and ``stop``. ``latest`` may be read by any
    thread. ``clock``: seconds since the epoch; ``monotonic``: seconds."""

    def __init__(
        self,
        copy: WatchedCopy,
        asking: Asking,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._copy, self._asking = copy, asking
        self._clock, self._monotonic = clock, monotonic
        self._meter = RateMeter()
        self._looked = float("-inf")
        self._wake = threading.Event()
        self._new = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self.history = History()
        self.latest = Picture()

    def start(self) -> None:
        self._thread.start()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def end(self) -> None:
        """Let no further picture be taken; ``newer_than`` returns at once."""
        self._stopping = True
        self._wake.set()
        with self._new:
            self._new.notify_all()

    def stop(self) -> None:
        self.end()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def look(self) -> Picture:
        """Return the latest picture, and let new ones be taken often for a while."""
        if self._monotonic() - self._looked > LOOKED_SECONDS:
            self._wake.set()
        self._looked = self._monotonic()
        return self.latest

    def refresh(self) -> None:
        """Let the next picture be taken at once, as after a change."""
        self._wake.set()

    def newer_than(self, number: int, seconds: float) -> Picture | None:
        """Wait for a picture after ``number``; None after ``seconds`` or at the end."""
        with self._new:
            self._new.wait_for(lambda: self.latest.number > number or self._stopping, seconds)
        return self.latest if self.latest.number > number else None

    def take(self) -> None:
        """Take one picture now. Never raises a FlumengError: it becomes the picture's problem."""
        began, now, before = self._monotonic(), self._clock(), self.latest
        away_since = (before.away_since or now) if self._copy.away else None
        try:
            with self._copy.query(whole=True) as cache:
                taken = self._taken(cache, now)
        except FlumengError as error:
            taken = replace(before, problem=str(error))
        self.latest = replace(
            taken,
            number=before.number + 1,
            took_seconds=self._monotonic() - began,
            away_since=away_since,
        )
        self._sample()
        with self._new:
            self._new.notify_all()

    def _taken(self, cache: Cache, now: float) -> Picture:
        answered: dict[str, Mapping[str, Account]] = {}

        def accounts(address: str) -> Mapping[str, Account]:
            answered[address] = self._asking.accounts(address)
            return answered[address]

        survey = health.survey(cache, accounts, self._asking.counters, now)
        status, flows = survey.status, survey.flows
        minute = self._last_minute(cache, flows, now)
        self._meter.add(status, minute, self._monotonic())
        known, first = self.latest.since, Since(now, or_longer=not self.latest.at)
        return Picture(
            at=now,
            status=status,
            flows=flows,
            nodes=survey.nodes,
            rates={flow.flow: self._meter.of(flow.flow) for flow in flows},
            audit=history.audit(cache, CHANGES_SHOWN),
            pauses=_pauses(cache, flows, self.latest.pauses),
            since={cause["about"]: known.get(cause["about"], first) for cause in status["causes"]},
            problem="",
            accounts=dict(answered),
        )

    def _last_minute(self, cache: Cache, flows: Sequence[FlowRow], now: float) -> dict[str, Rates]:
        tasks = [task for flow in flows for task in flow.tasks]
        counts = task_counts(cache, self._asking.counters, tasks)
        rows: dict[str, list[Any]] = {flow.flow: [] for flow in flows}
        for row in counts.rows:
            rows.setdefault(row.flow, []).append(row)
        return {flow: rates_of(replace(counts, rows=tuple(own)), now) for flow, own in rows.items()}

    def _sample(self) -> None:
        now, picture = self._monotonic(), self.latest
        if picture.problem or not self.history.is_due(now):
            return
        rates = picture.rates.values()
        flows = picture.status["flows"]
        values: dict[str, float | None] = {
            "cluster in": total(rate.incoming for rate in rates),
            "cluster out": total(rate.delivered for rate in rates),
            "cluster oldest": oldest(flows),
            "cluster dead": total(rate.dead_letters for rate in rates),
        }
        for flow in flows:
            name = flow["flow"]
            values[f"flow {name} lag"] = float(flow["lag"])
            values[f"flow {name} in"] = picture.rates[name].incoming
            values[f"flow {name} out"] = picture.rates[name].delivered
        self.history.add(values, now)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self.take()
            except Exception as error:  # no input may end the thread
                log.exception("no picture of the cluster could be taken")
                self.latest = replace(self.latest, problem=f"{type(error).__name__}: {error}")
            looks = self._monotonic() - self._looked < LOOKED_SECONDS
            pause = max(SECONDS if looks else IDLE_SECONDS, SHARE * self.latest.took_seconds)
            self._wake.wait(pause)


def _pauses(
    cache: Cache, flows: Sequence[FlowRow], known: Mapping[str, AuditRow]
) -> dict[str, AuditRow]:
    """Return who paused each suspended flow; without those whose pause is no longer found."""
    paused = {flow.flow for flow in flows if flow.state == "suspended"}
    found = {flow: known[flow] for flow in paused if flow in known}
    if paused <= set(found):
        return found
    for entry in history.audit(cache, CHANGES_SEARCHED):
        words = entry.command.split()
        if words[:2] == ["flow", "pause"] and words[2:3] and words[2] in paused:
            found[words[2]] = entry
    return found


def total(values: Any) -> float | None:
    """Return the sum of the known values; None when none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def oldest(flows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the age in seconds of the oldest undelivered event; None when it is unknown."""
    ages = [flow["lag_seconds"] for flow in flows if flow["lag_seconds"] is not None]
    return max(ages, default=None)
