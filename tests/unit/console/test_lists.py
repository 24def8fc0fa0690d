"""Lists of flows, nodes, queues, journals, cursors, audit, settings, sites, and search.

Protects that one damaged record is one row with its sentence and affects nothing else, that text of
operators and senders stays text, and that wrong parameters get a sentence.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flumeng.console.pages.listing import MOST_CHARACTERS
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import set_setting
from flumeng.control.zookeeper import ABSENT, ANY
from tests.testkit.command_line import NOON
from tests.unit.console.big_cluster import PAGES, Cluster, account, first_cells, text_of
from zkschema import paths, records

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}"
JOURNAL = "web.n1.0.0000000a"
LISTS = [page for page in PAGES if page not in ("/settings", "/search")]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.add_flow("web")
    cluster.add_flow("audit")
    for name in ("n1", "n2"):
        cluster.add_node(name, zone="a")
    cluster.add_journal(JOURNAL, account(1000))
    return cluster


@dataclass
class FakeSites:
    given: Sequence[Mapping[str, Any]] = ()
    problem: str = ""

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self.given

    def start(self) -> None: ...

    def stop(self) -> None: ...


def site(name: str, **fields: Any) -> Mapping[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("error", "push", "digest", "revision", "unproven", "pushed_by", "health", "wave"), ""
    )
    empty: dict[str, Any] = dict.fromkeys(("drift", "causes", "versions", "reads", "leases"), ())
    return {**row, **empty, "site": name, "behind": 0, "lag": 0, "asked": None, **fields}


@pytest.mark.parametrize("url", PAGES)
def test_empty_cluster_says_what_to_do_next(url: str) -> None:
    cluster = Cluster()
    cluster.look()
    page = cluster.page(url)
    if url not in ("/settings", "/audit"):
        assert 'class="empty"' in page


@pytest.mark.parametrize("url", PAGES)
def test_page_works_before_the_first_picture(url: str) -> None:
    Cluster().page(url)


@pytest.mark.parametrize("url", LISTS)
@pytest.mark.parametrize("page", ["abc", "0", "-1", "1.5", "9" * 5000, "\u0663"])
def test_wrong_page_number_gets_a_sentence(cluster: Cluster, url: str, page: str) -> None:
    answer = cluster.client.get(url, params={"page": page})
    assert answer.status_code == 422
    assert "page " in text_of(answer.text)


@pytest.mark.parametrize("url", LISTS)
def test_page_behind_the_last_shows_the_last(cluster: Cluster, url: str) -> None:
    cluster.look()
    assert first_cells(cluster.page(f"{url}?page=999999")) == first_cells(cluster.page(url))


@pytest.mark.parametrize("url", ["/flows", "/nodes", "/journals", "/queues", "/cursors", "/sites"])
def test_unknown_order_gets_the_known_ones(cluster: Cluster, url: str) -> None:
    assert 'no order "nam"; did you mean' in text_of(cluster.page(f"{url}?sort=nam", 422))


@pytest.mark.parametrize("url", PAGES)
def test_too_long_search_gets_a_sentence(cluster: Cluster, url: str) -> None:
    if url != "/settings":
        cluster.page(f"{url}?q={'x' * (MOST_CHARACTERS + 1)}", 422)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("/nodes/n3", 'there is no node "n3"'),
        ("/journals/nope", 'there is no journal "nope"'),
        ("/queues/nope", 'there is no flow "nope"'),
        ("/cursors/web/nope", 'has no cursor "nope"'),
        ("/cursors/nope/x", 'has no cursor "x"'),
        ("/nodes/%3Cscript%3E", "there is no node"),
    ],
)
def test_unknown_name_is_a_404_with_a_hint(cluster: Cluster, url: str, sentence: str) -> None:
    cluster.look()
    page = cluster.page(url, 404)
    assert sentence in text_of(page)
    assert "<script>" not in page.partition("<main")[2]


def test_flow_has_its_lag_state_and_label(cluster: Cluster) -> None:
    cluster.look()
    page = cluster.page("/flows")
    assert first_cells(page) == ["web", "audit"]
    assert "team=t0" in text_of(page)


def damage(cluster: Cluster, kind: str) -> str:
    """Damage a record of this kind; return its path."""
    store = cluster.store
    store.write(paths.plan("web"), records.Plan(epoch=1), ANY)
    store.write(
        paths.lease("web", "job"),
        records.Lease(holder="h", reader="r", keep_seconds=9.0, renewed=NOON),
        ANY,
    )
    store.write(paths.cursor("web", "job"), None, ANY)
    store.write(paths.breaks("web"), records.Breaks(), ANY)
    store.write(paths.queue("web"), records.Queue(epoch=1, next={"0": 1}), ANY)
    store.write(paths.queue_lanes("web"), None, ANY)
    store.write(paths.queue_lane("web", "0"), None, ANY)
    store.write(paths.queue_segment("web", "0", "0"), records.QueueSegment(first=0), ANY)
    store.write(paths.queue_failures("web"), None, ANY)
    failure = records.QueueFailure(
        location="l", size=1, modified=0, tag="", position=0, why="w", time=NOON
    )
    store.write(paths.queue_failure("web", "0.0"), failure, ANY)
    store.write(paths.story("n1"), records.Story(), ANY)
    master = records.LiveMaster(host="h", pid=1, version="0", since=NOON)
    store.write(paths.live_master("m1"), master, ANY)
    cluster.look()
    path = {
        "flow": paths.flow("web"),
        "revision": paths.revision("web", "1"),
        "plan": paths.plan("web"),
        "node": paths.node("n1"),
        "live node": paths.live_node("n1"),
        "status": paths.status("n1"),
        "story": paths.story("n1"),
        "journal": paths.journal(JOURNAL),
        "lease": paths.lease("web", "job"),
        "breaks": paths.breaks("web"),
        "queue": paths.queue("web"),
        "segment": paths.queue_segment("web", "0", "0"),
        "failure": paths.queue_failure("web", "0.0"),
        "cluster": paths.cluster(),
        "schema": paths.schema(),
        "master": paths.live_master("m1"),
    }[kind]
    cluster.damage(path)
    cluster.look()
    return str(path)


DAMAGE = {
    "/flows": ("flow", "revision", "plan"),
    "/nodes": ("node", "live node", "status"),
    "/nodes/n1": ("node", "live node", "status", "story"),
    "/journals": ("journal",),
    f"/journals/{JOURNAL}": ("journal",),
    "/cursors": ("lease", "breaks"),
    "/cursors/web/job": ("lease",),
    "/queues": ("queue",),
    "/queues/web": ("queue", "segment", "failure"),
    "/settings": ("cluster", "schema", "master"),
}


@pytest.mark.parametrize(
    ("url", "kind"), [(url, kind) for url, kinds in DAMAGE.items() for kind in kinds]
)
def test_damaged_record_is_named_with_advice(cluster: Cluster, url: str, kind: str) -> None:
    path = damage(cluster, kind)
    page = text_of(cluster.page(url))
    assert path in page
    assert "flumeng schema verify" in page


@pytest.mark.parametrize("kind", sorted({kind for kinds in DAMAGE.values() for kind in kinds}))
def test_damaged_record_leaves_all_other_rows(cluster: Cluster, kind: str) -> None:
    damage(cluster, kind)
    for url in (*PAGES, "/nodes/n2", "/queues/web", "/cursors/web/job"):
        cluster.page(url)
    assert {"web", "audit"} <= set(first_cells(cluster.page("/flows")))
    assert {"n1", "n2"} <= set(first_cells(cluster.page("/nodes")))
    assert JOURNAL in first_cells(cluster.page("/journals"))


def test_silent_node_is_named_and_holds_nothing_up(cluster: Cluster) -> None:
    del cluster.accounts["n1:7000"]
    cluster.look()
    began = time.monotonic()
    for url in ("/nodes", "/journals", "/queues", "/cursors"):
        assert "1 node did not answer when last asked: n1" in text_of(cluster.page(url))
    assert "it did not answer when last asked" in text_of(cluster.page("/nodes/n1"))
    assert JOURNAL in first_cells(cluster.page("/journals"))
    assert time.monotonic() - began < 2.0


def test_node_that_is_gone_keeps_its_page(cluster: Cluster) -> None:
    line = records.StoryLine(
        time=NOON, who="ingest.0", event="ended", before="running", after="waiting", cause="oom"
    )
    cluster.store.write(paths.story("n1"), records.Story(lines=(line,)), ABSENT)
    cluster.store.remove(paths.live_node("n1"), ANY)
    cluster.look()
    page = text_of(cluster.page("/nodes/n1"))
    assert "this is its last saved event log" in page
    assert "oom" in page
    assert "flumeng node decommission n1 --discard" in page


def test_removed_node_is_a_404_at_once(cluster: Cluster) -> None:
    cluster.look()
    cluster.page("/nodes/n2")
    for path in (paths.live_node("n2"), paths.status("n2"), paths.node("n2")):
        cluster.store.remove(path, ANY)
    cluster.look()
    cluster.page("/nodes/n2", 404)


def test_journal_that_fills_is_marked_and_first(cluster: Cluster) -> None:
    filling = account(50_000, acked_minute_ago=0, safe_minute_ago=40_000)
    cluster.add_journal("audit.n2.0.0000000b", filling)
    cluster.look()
    page = cluster.page("/journals")
    assert first_cells(page)[0] == "audit.n2.0.0000000b"
    assert "5 min" in text_of(page)
    assert "5 min" in text_of(cluster.page("/nodes/n2"))
    assert "5 min" in text_of(cluster.page("/journals/audit.n2.0.0000000b"))


def test_journal_shows_which_replicas_are_in_sync(cluster: Cluster) -> None:
    cluster.add_journal(
        "web.n2.0.0000000c",
        account(10, lags={"n1": 7}),
        replicas=("n2", "n1"),
        in_sync=("n2/1",),
        lineage="l",
    )
    cluster.look()
    page = text_of(cluster.page("/journals/web.n2.0.0000000c"))
    assert "n2 primary yes 0" in page
    assert "n1 replica no 7" in page
    assert "web.n2.0.0000000c : not in sync, lacks 7 events" in text_of(cluster.page("/nodes/n1"))


def test_draining_node_says_what_is_left(cluster: Cluster) -> None:
    node = records.Node(uuid="n1", roles=("ingest",), desired="draining")
    cluster.store.write(paths.node("n1"), node, ANY)
    cluster.look()
    page = cluster.page("/nodes/n1")
    assert "1 journal left" in text_of(page)
    assert "/do/node-undrain?node=n1" in page


@pytest.mark.parametrize(
    "url", [*PAGES, "/nodes/n1", f"/journals/{JOURNAL}", "/queues/web", "/cursors/web/job"]
)
def test_viewer_without_rights_sees_no_action(cluster: Cluster, url: str) -> None:
    damage(cluster, "segment")
    assert "/do/" in "".join(map(cluster.page, ("/nodes/n1", "/settings", "/queues/web")))
    cluster.viewer = Viewer("bob")
    assert "/do/" not in cluster.page(url)


def test_operator_of_other_flows_sees_no_action_on_this_one(cluster: Cluster) -> None:
    damage(cluster, "story")
    cluster.viewer = Viewer("carol", "operator", flows=("audit*",))
    assert "/do/" not in cluster.page("/cursors/web/job")
    assert "/do/" not in cluster.page("/queues/web")
    assert "/do/" not in cluster.page("/nodes/n1")


def test_cursor_shows_its_lease_and_what_it_has_lost(cluster: Cluster) -> None:
    damage(cluster, "story")
    gap = records.Gap(journal=JOURNAL, start=3, end=9)
    broke = records.Break(
        id="1", reader="r", why="its time was over", time=NOON, events=6, gaps=(gap,)
    )
    cluster.store.write(paths.breaks("web"), records.Breaks(cursors={"job": broke}), ANY)
    cluster.clock.now += 7.2
    cluster.look()
    page = cluster.page("/cursors/web/job")
    assert "80%" in text_of(page)
    assert "3 to 8, 6 events" in text_of(page)
    assert "/do/cursor-end?flow=web&amp;cursor=job" in page
    assert "/do/cursor-acknowledge?flow=web&amp;cursor=job" in page
    assert "its time was over" in text_of(cluster.page("/cursors"))


def test_failed_item_has_its_reason_and_actions(cluster: Cluster) -> None:
    damage(cluster, "story")
    page = cluster.page("/queues/web")
    assert "0.0 failed l" in text_of(page)
    assert "/do/queue-retry?flow=web&amp;items=0.0" in page
    assert "/do/queue-skip?flow=web&amp;items=0.0" in page


def test_audit_is_filtered_by_who_command_and_flow(cluster: Cluster) -> None:
    for who, flow in (("alice", "web"), ("bob", "web2"), ("bob", "web")):
        operator = Operator(cluster.store, who, f"because of {flow}", NOON)
        operator.commit([], f"flow pause {flow}")
    cluster.look()

    def found(query: str) -> str:
        return text_of(cluster.page(f"/audit?{query}")).partition("Find ")[2][:12]

    assert found("who=BOB").startswith("2 change")
    assert found("flow=web").startswith("2 change")
    assert found("flow=web&who=alice&command=pause").startswith("1 change")
    assert found("q=because+web2").startswith("1 of 3")
    assert found("command=resume").startswith("0 change")


def test_settings_show_what_was_changed_and_masters(cluster: Cluster) -> None:
    set_setting(Operator(cluster.store, "alice", "", NOON), "grace_seconds", "30")
    ending = {"certificate of master": "it expires in 3 days"}
    master = records.LiveMaster(host="h", pid=1, version="0", since=NOON, troubles=ending)
    cluster.store.write(paths.live_master("m1"), master, ABSENT)
    cluster.look()
    page = text_of(cluster.page("/settings"))
    assert "grace_seconds 30 , changed 0" in page
    assert "master m1 : certificate of master: it expires in 3 days" in page
    assert "2 flows" in page


@pytest.mark.parametrize("url", [*PAGES, "/nodes/n1", f"/journals/{JOURNAL}", "/queues/web"])
def test_hostile_text_stays_text(cluster: Cluster, url: str) -> None:
    damage(cluster, "segment")
    store = cluster.store
    cluster.accounts["n1:7000"] = {JOURNAL: account(9, problem=EVIL, durability=EVIL)}
    store.write(paths.flow("web"), records.Flow(revision=1, went_back=EVIL), ANY)
    node = records.Node(
        uuid="n1", roles=(EVIL,), desired=EVIL, zone=EVIL, labels={EVIL: EVIL}, capacity={EVIL: 1.0}
    )
    store.write(paths.node("n1"), node, ANY)
    live = records.LiveNode(
        uuid="n1",
        incarnation="i",
        pid=1,
        version=EVIL,
        since=NOON,
        addresses=("n1:7000",),
        collector=EVIL,
    )
    store.write(paths.live_node("n1"), live, ANY)
    status = records.NodeStatus(
        assignment_version=1, problems={EVIL: EVIL}, spark_ui=f"javascript:alert('{EVIL}')"
    )
    store.write(paths.status("n1"), status, ANY)
    line = records.StoryLine(time=NOON, who=EVIL, event=EVIL, before=EVIL, after=EVIL, cause=EVIL)
    store.write(paths.story("n1"), records.Story(lines=(line,)), ANY)
    lease = records.Lease(holder=EVIL, reader=EVIL, keep_seconds=9.0, renewed=NOON)
    store.write(paths.lease("web", "job"), lease, ANY)
    broke = records.Break(id="1", reader=EVIL, why=EVIL, time=NOON, events=6)
    store.write(paths.breaks("web"), records.Breaks(cursors={EVIL: broke}), ANY)
    failure = records.QueueFailure(
        location=EVIL, size=1, modified=0, tag="", position=0, why=EVIL, time=NOON
    )
    store.write(paths.queue_failure("web", "0.0"), failure, ANY)
    maintenance = records.Maintenance(who=EVIL, why=EVIL, since=NOON)
    store.write(
        paths.cluster(),
        records.Cluster(maintenance=maintenance, site=EVIL, chokes={EVIL: 1.0}),
        ANY,
    )
    master = records.LiveMaster(host=EVIL, pid=1, version=EVIL, since=NOON, troubles={EVIL: EVIL})
    store.write(paths.live_master("m1"), master, ANY)
    Operator(store, EVIL, EVIL, NOON).commit([], EVIL)
    cluster.look()
    page = cluster.page(url, 200)
    asked = cluster.client.get(url, params={"q": EVIL, "who": EVIL}).text
    for text in (page, asked):
        assert "<img" not in text
        assert "<script>" not in text
        assert 'href="javascript:' not in text
        assert " onerror=alert(1)>" not in text


@pytest.mark.parametrize("url", ["/sites", "/search?q=x"])
def test_hostile_site_stays_text(url: str) -> None:
    link = {
        **dict.fromkeys(("flow", "site", "source", "state", "why"), EVIL),
        **dict.fromkeys(("since", "keep_seconds", "renewed_seconds", "time", "room"), 1.0),
        **{"events": 1, "bytes": 1, "broke": {"events": 1, "why": EVIL}, "downs": 0},
    }
    lease = {
        **dict.fromkeys(("flow", "site", "reads_as", "problem"), EVIL),
        **dict.fromkeys(("age_seconds", "keep_seconds", "time", "room"), 1.0),
        "lag": 1,
    }
    texts = dict.fromkeys(
        ("error", "push", "digest", "revision", "unproven", "pushed_by", "health", "wave"), EVIL
    )
    lists: dict[str, Any] = dict.fromkeys(("drift", "causes", "versions"), (EVIL,))
    row = site(f"x{EVIL}", **texts, **lists, asked=NOON, reads=(link,), leases=(lease,))
    cluster = Cluster(sites=FakeSites([row], problem=EVIL))
    page = cluster.client.get(url)
    assert page.status_code in (200, 303)
    assert "<img" not in page.text
    assert "\n" not in page.headers.get("location", "")


def test_sites_show_health_and_which_cannot_be_read() -> None:
    rows = [
        site("east", health="ok", asked=NOON),
        site("west", health="degraded", asked=NOON, error="no answer within 70 s"),
        site("new"),
    ]
    cluster = Cluster(sites=FakeSites(rows))
    page = cluster.page("/sites")
    assert first_cells(page) == ["west", "east", "new"]
    assert "cannot be read: no answer within 70 s" in text_of(page)
    assert "not asked yet" in text_of(page)
    assert 'href="/sites"' in page


def test_search_finds_tasks_cursors_and_sites(cluster: Cluster) -> None:
    cluster = Cluster(sites=FakeSites([site("webby")]))
    cluster.add_flow("web")
    task = records.PlannedTask(kind=records.COLLECT, node=None, epoch=1, state="waiting")
    cluster.store.write(paths.plan("web"), records.Plan(epoch=1, tasks={"collect.0": task}), ABSENT)
    cluster.store.write(paths.cursor("web", "job"), None, ABSENT)
    cluster.look()
    page = text_of(cluster.page("/search?q=WEB"))
    for kind in ("Flows (1)", "Tasks (1)", "Cursors (1)", "Sites (1)"):
        assert kind in page
    assert cluster.client.get("/search?q=collect.0").headers["location"] == "/flows/web"
    assert "Names with" in text_of(cluster.page("/search?q=nothing+has+this"))


def test_pages_answer_while_zookeeper_is_away(cluster: Cluster) -> None:
    cluster.look()
    for url in PAGES:
        cluster.page(url)
    cluster.store.cut()
    cluster.look()
    for url in ("/flows", "/nodes", "/journals", "/nodes/n1"):
        assert "ZooKeeper has not answered" in cluster.page(url)
