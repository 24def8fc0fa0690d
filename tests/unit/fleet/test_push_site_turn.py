"""A turn, and a look at a site, with another writer at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import queues
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ABSENT, ANY, Put, Store, Write
from flumeng.fleet import claim as claims
from flumeng.fleet import planning
from flumeng.fleet.inventory import Site
from flumeng.fleet.site_copy import copy_site
from flumeng.fleet.site_state import push_of, state_of
from flumeng.fleet.site_turn import Link, Task, Turn
from flumeng.platform.errors import ConflictError, ForbiddenError
from tests.testkit.scripted_store import ScriptedStore, at
from tests.testkit.sites import NOON, FakeSites
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.records import Push, PushClaim, Queue, QueueFailure, Record

R = TypeVar("R", bound=Record)

WEB = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
OURS = PushClaim(who="ann", push="p", boot="here", pid=1, since=NOON)
THEIRS = PushClaim(who="bob", push="q", boot="there", pid=2, since=NOON)


def meddled(shared: FakeTree, nth: int, meddle: Callable[[FakeStore], object]) -> FakeStore:
    """Calls ``meddle`` just before the ``nth`` request."""
    hook = at(nth, lambda: meddle(FakeStore(shared)))
    return ScriptedStore(shared, before_read=hook, before_commit=hook)


def by_hand(text: str) -> Callable[[FakeStore], object]:
    return lambda store: apply_flow(Operator(store, "hand", "", NOON), text)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_copy_of_a_site_is_of_one_moment(nth: int) -> None:
    """With any change between its looks, it has the old flow with its text, or the new one."""
    sites = FakeSites(1)
    by_hand(WEB)(sites.store("s0"))
    copy = copy_site(meddled(sites.trees["s0"], nth, by_hand(WEB + "# 2\n")))
    assert state_of(copy).resources["flow/web"] == WEB + "# 2\n"
    assert state_of(copy).unreadable == {}


def test_flow_made_while_a_site_is_read_is_not_missed() -> None:
    sites = FakeSites(1)
    copy = copy_site(meddled(sites.trees["s0"], 3, by_hand(WEB)))
    assert list(state_of(copy).resources) == ["flow/web"]


def test_copy_has_the_unreadable_objects() -> None:
    sites = FakeSites(1)
    store = sites.store("s0")
    by_hand(WEB)(store)
    failure = QueueFailure(location="/in/a", size=7, modified=5, position=3, why="bits", time=1.0)
    store.write(paths.queue("web"), Queue(epoch=1, id="5f2a90c1", next={"0": 9}), ABSENT)
    store.write(paths.queue_failures("web"), None, ABSENT)
    store.write(paths.queue_failure("web", "0.0"), failure, ABSENT)
    assert list(queues.causes(ReadCache(copy_site(store)))) == list(queues.causes(ReadCache(store)))
    assert len(list(queues.causes(ReadCache(store)))) == 1


def test_turn_whose_claim_was_taken_over_writes_nothing() -> None:
    sites = FakeSites(1)
    store = sites.store("s0")
    store.write(paths.push(), Push(claim=OURS), ABSENT)
    plan = planning.plan_push(sites.inventory(), {"s0": {"flow/web": WEB}}, sites.connect())
    source = planning.source_of(plan, who="ann", reason="", now=NOON, suffix="x")
    site = sites.inventory().sites["s0"]
    task = Task(site, plan.sites["s0"].comparison.changes, "apply", source, OURS, 1.0, 0.0)
    theirs: list[Write] = [Put(paths.push(), Push(claim=THEIRS), ANY)]

    def connect(_site: Site) -> FakeStore:
        return meddled(sites.trees["s0"], 4, lambda other: other.commit(theirs))

    clocks = sites.time.clocks
    turn = Turn(task, Link(site, connect, clocks), lambda _copy: {}, clocks, lambda _text: None)
    with pytest.raises(ConflictError, match="bob took over"):
        turn.write()
    assert store.children(paths.flows()) == []
    turn.end("refused")
    assert claims.is_held_by(push_of(copy_site(store)), THEIRS)


def test_forbidden_step_is_not_repeated() -> None:
    sites = FakeSites(1)
    clocks = sites.time.clocks
    site = sites.inventory().sites["s0"]

    def refuse(_store: Store) -> None:
        raise ForbiddenError("no")

    with pytest.raises(ForbiddenError):
        Link(site, sites.connect(), clocks).do(refuse)
    assert clocks.monotonic() == 0.0
