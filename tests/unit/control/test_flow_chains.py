"""Flows that read others behind their filters, or read flows that read flows: their effective
filters."""

from __future__ import annotations

import pytest
import yaml

from flumeng.config import SpecError, check_flow
from flumeng.config.chain import chain_of, composed
from flumeng.config.guarantees import promise
from flumeng.control.commands.flows import apply_flow, apply_flows, delete_flow, rollback_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import RefusedError, next_revisions
from flumeng.control.queries.flow_graph import graph_of
from flumeng.control.queries.overview import flow as flow_detail
from flumeng.control.zookeeper import tree
from flumeng.fleet.site_copy import copy_site
from flumeng.platform.errors import ConflictError
from tests.testkit.scripted_store import ScriptedStore, once
from tests.testkit.store import FakeStore
from zkschema import paths, records

WEB = """
flow: web
sources: [{syslog: {listen: '127.0.0.1:5514'}}]
multiline: {starts: '^[0-9]'}
filters:
  - parse: {format: syslog}
    on_error: dead-letter
  - set: {team: "'web'"}
sinks: [noop]
dead_letters: noop
branches: [{name: all, when: 'true', filters: [{where: "severity < 3"}], sinks: [noop]}]
"""
COPY = """
flow: copy  # for the second team
sources: [{flow: {name: web, start_from: latest, after: filters}}]
filters: [{where: "team = 'web'"}]
sinks: [noop]
"""
NEXT = "flow: next\nsources: [{flow: {name: copy}}]\nsinks: [noop]\n"
BY = ("ann", "asked for", 0.0)


@pytest.fixture
def store() -> FakeStore:
    return new_store()


def new_store() -> ScriptedStore:
    store = ScriptedStore()
    tree.init(store)
    return store


def revision(store: FakeStore, flow: str) -> records.Revision:
    record = store.read(paths.flow(flow))
    assert record is not None
    found = store.read(paths.revision(flow, str(record.value.revision)))
    assert found is not None
    return found.value


def filters(store: FakeStore, flow: str) -> list[str]:
    found = yaml.safe_load(revision(store, flow).effective).get("filters", [])
    return [next(iter(one)) for one in found]


def test_reader_runs_the_filters_of_the_other_flow_before_its_own(store: FakeStore) -> None:
    text = COPY + "dead_letters: noop\n"
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": text}))
    kept = revision(store, "copy")
    assert kept.text == text
    assert flow_detail(store, "copy").text == text
    assert yaml.safe_load(kept.effective) == {
        "flow": "copy",
        "sources": [{"flow": {"name": "web", "start_from": "latest"}}],
        "multiline": {"starts": "^[0-9]"},
        "filters": [
            {"parse": {"format": "syslog"}, "on_error": "drop"},
            {"set": {"team": "'web'"}},
            {"where": "team = 'web'"},
        ],
        "sinks": ["noop"],
        "dead_letters": "noop",
    }
    assert revision(store, "web").effective == WEB
    assert store.children(paths.acks("web")) == ["copy", "main"]


def test_change_of_the_read_flow_changes_both_in_one_transaction() -> None:
    store = new_store()
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    before = len(store.transactions)
    made = list(apply_flows(Operator(store, *BY), {"web": WEB.replace("'web'", "'new'")}))
    assert len(store.transactions) - before == 1
    assert [(one.flow, one.revision) for part in made for one in part] == [("web", 2), ("copy", 2)]
    found = revision(store, "copy")
    assert "'new'" in found.effective
    assert (found.text, found.author, found.reason) == (COPY, "ann", "filters of web changed")
    rollback_flow(Operator(store, *BY), "web", 1)
    assert len(store.transactions) - before == 2
    assert "'new'" not in revision(store, "copy").effective
    assert store.read(paths.flow("copy")).value.revision == 3  # type: ignore[union-attr]


def test_change_without_effect_on_a_reader_writes_nothing() -> None:
    store = new_store()
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    before = len(store.transactions)
    made = list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    assert (len(store.transactions), [one.changed for part in made for one in part]) == (
        before,
        [False] * 2,
    )
    list(apply_flows(Operator(store, *BY), {"web": WEB.replace("severity < 3", "severity < 4")}))
    assert store.read(paths.flow("copy")).value.revision == 1  # type: ignore[union-attr]


def test_a_change_that_a_reader_cannot_run_is_refused_as_a_whole() -> None:
    store = new_store()
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    before = len(store.transactions)
    wrong = WEB.replace("team:", "crew:")
    with pytest.raises(
        RefusedError, match=r"flow copy, which reads web.*filters\[2\].*team"
    ) as refused:
        apply_flow(Operator(store, *BY), wrong)
    assert list(refused.value.refused) == ["web"]
    rolling = WEB + "rollout: {}\n"
    with pytest.raises(RefusedError, match=r"flow copy, which reads web.*may roll back by itself"):
        apply_flow(Operator(store, *BY), rolling)
    assert len(store.transactions) == before
    with pytest.raises(RefusedError, match="flow lines: multiline: the flow joins lines"):
        text = COPY.replace("copy", "lines") + "multiline: {starts: '^a'}\n"
        apply_flow(Operator(store, *BY), text)


def test_concurrent_changes_of_both_flows_conflict() -> None:
    changed = WEB.replace("'web'", "'new'")
    store = new_store()
    apply_flow(Operator(store, *BY), WEB)
    store.before_commit = once(lambda: apply_flow(Operator(store, *BY), COPY))
    with pytest.raises(ConflictError):
        apply_flow(Operator(store, *BY), changed)
    store = new_store()
    apply_flow(Operator(store, *BY), WEB)
    store.before_commit = once(lambda: apply_flow(Operator(store, *BY), changed))
    with pytest.raises(ConflictError):
        apply_flow(Operator(store, *BY), COPY)


def test_a_flow_may_read_one_that_reads_a_flow(store: FakeStore) -> None:
    last = NEXT.replace("next", "last").replace("name: copy", "name: next, after: filters")
    list(apply_flows(Operator(store, *BY), {"last": last, "next": NEXT, "copy": COPY, "web": WEB}))
    assert filters(store, "next") == ["parse", "set"]
    assert filters(store, "last") == ["parse", "set"]
    assert store.children(paths.acks("web")) == ["copy", "last", "main", "next"]
    apply_flow(Operator(store, *BY), NEXT.replace("name: copy", "name: copy, after: filters"))
    assert filters(store, "next") == ["parse", "set", "where"]
    apply_flow(
        Operator(store, *BY), NEXT.replace("sinks", "filters: [{rename: {host: at}}]\nsinks")
    )
    assert filters(store, "last") == ["parse", "set", "rename"]
    with pytest.raises(ConflictError, match="flow copy is read by last, next"):
        delete_flow(Operator(store, *BY), "copy")


@pytest.mark.parametrize("after", ["sources", "filters"])
def test_flows_that_read_each_other_are_refused(store: FakeStore, after: str) -> None:
    texts = {
        name: f"flow: {name}\nsources: [{{flow: {{name: {of}, after: {after}}}}}]\nsinks: [noop]\n"
        for name, of in {"a": "b", "b": "c", "c": "a"}.items()
    }
    with pytest.raises(RefusedError, match="flows read each other: a reads b reads c reads a"):
        list(apply_flows(Operator(store, *BY), texts))
    list(apply_flows(Operator(store, *BY), {**texts, "c": WEB.replace("flow: web", "flow: c")}))
    with pytest.raises(RefusedError, match="flows read each other: c reads a reads b reads c"):
        apply_flow(Operator(store, *BY), texts["c"])
    with pytest.raises(SpecError, match="cannot read itself"):
        check_flow(texts["a"].replace("name: b", "name: a"))


def test_isolated_parts_run_the_filters_of_the_read_flow(store: FakeStore) -> None:
    text = COPY.replace("[noop]", "[noop, {console: {}, isolated: true}]")
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": text}))
    assert filters(store, "copy~console") == ["parse", "set", "where"]
    apply_flow(Operator(store, *BY), WEB.replace("'web'", "'new'"))
    assert "'new'" in revision(store, "copy~console").effective


def test_push_changes_the_reader_too(store: FakeStore) -> None:
    list(apply_flows(Operator(store, *BY), {"web": WEB, "copy": COPY}))
    web, copy = next_revisions(copy_site(store), {"web": WEB.replace("'web'", "'new'")})
    assert (web.flow, copy.flow, copy.because) == ("web", "copy", "filters of web changed")
    assert "'new'" in copy.runs


@pytest.mark.slow
def test_readers_change_together_as_far_as_a_transaction_holds() -> None:
    store = new_store()
    many = {f"copy{n}": COPY.replace("copy", f"copy{n}") for n in range(1000)}
    with pytest.raises(RefusedError, match=r"1001 flows.* fit into a transaction"):
        list(apply_flows(Operator(store, *BY), {"web": WEB} | many))
    some = dict(list(many.items())[:200])
    list(apply_flows(Operator(store, *BY), {"web": WEB} | some))
    before = len(store.transactions)
    apply_flow(Operator(store, *BY), WEB.replace("'web'", "'new'"))
    assert len(store.transactions) - before == 1
    assert all("'new'" in revision(store, flow).effective for flow in some)


def test_guarantees_and_graph_name_the_read_flow() -> None:
    spec = check_flow(COPY)
    assert "through the filters of web" in promise(spec)[0]
    assert graph_of(spec).nodes[0].label == "flow web after filters"
    texts = {"web": WEB, "copy": COPY}
    chain = chain_of("copy", texts.get)
    assert composed(COPY, chain, [WEB])
    assert not composed(COPY.replace("filters}", "sources}"), chain_of("x", texts.get), [])
