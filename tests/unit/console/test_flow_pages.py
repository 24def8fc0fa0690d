"""The pages of a flow, as a viewer in an incident reads them."""

from __future__ import annotations

import html
import re
import time

import pytest

from flumeng.console.history import STEP_SECONDS
from flumeng.console.who.viewers import Viewer
from flumeng.control.commands.flows import apply_flow, delete_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY
from flumeng.platform.errors import UserError
from tests.unit.console.flow_cluster import ANN, EVE, FLOW, NOON, Cluster, damage, text_of
from zkschema import paths, records

PARTS = ("", "/", "/partitions", "/events", "/revisions", "/dead", "/tap", "/edit")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_head_says_what_is_wrong_since_when_and_what_to_do(cluster: Cluster) -> None:
    page = text_of(cluster.page("/flows/web"))
    assert "Flow web: running (retrying)" in page
    assert "task web/collect.0 is retrying: elasticsearch: Connection refused" in page
    assert "Since 2023-11-14 22:08:20 UTC" in page, "by the event log of the node"
    assert "Next: check that the sink in the error is up" in page
    assert "1 by ann, 2023-11-14 21:56:40 UTC : the first" in page
    assert "700 events" in page


def test_the_graph_shows_where_events_stop_and_each_box_taps_there(cluster: Cluster) -> None:
    page = cluster.page("/flows/web")
    stops = '<svg class="box stopped"'
    assert page.count(stops) == 1
    box = page[page.index(stops) :]
    assert "elasticsearch http://es:92" in box[: box.index("</svg>")]
    assert "events stop here" in box[: box.index("</svg>")]
    assert 'href="/flows/web/tap?at=filters%5B0%5D.parse"' in page
    assert 'href="/flows/web/tap?at=branches%5Brest%5D.sinks"' in page
    assert "events stop here: sink elasticsearch http://es:9200 web: task collect.0" in text_of(
        page
    )


def test_each_sink_has_its_last_error_and_since_when(cluster: Cluster) -> None:
    page = cluster.page("/flows/web")
    sinks = text_of(page[page.index('id="sinks"') :])
    assert "retrying elasticsearch: Connection refused 2023-11-14 22:08:20 UTC 1" in sinks
    assert "files /e branches[errors].sinks[0].files no error 0" in sinks


def test_a_flow_of_which_nothing_is_wrong_is_ok(cluster: Cluster) -> None:
    cluster.report("running")
    page = cluster.page("/flows/web")
    assert '<section class="verdict ok">' in page
    assert '<svg class="box stopped"' not in page
    assert page.count('<svg class="box ok"') == 7


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_there_without_scripts(cluster: Cluster, part: str) -> None:
    page = cluster.page(f"/flows/web{part}")
    assert "<h1>Flow web" in page
    assert "style=" not in page
    assert "<script>" not in page


@pytest.mark.parametrize("part", PARTS)
def test_a_viewer_sees_no_actions(cluster: Cluster, part: str) -> None:
    page = cluster.page(f"/flows/web{part}", EVE, 403 if part == "/edit" else 200)
    assert "/do/" not in page
    assert ">Edit<" not in page


def test_an_operator_of_other_flows_sees_no_actions(cluster: Cluster) -> None:
    other = Viewer("bob", "operator", flows=("shop*",))
    assert "/do/" not in cluster.page("/flows/web", other)
    assert "/do/" in cluster.page("/flows/web", Viewer("bob", "operator", flows=("w*",)))


def test_actions_fit_the_state_and_show_their_command_lines(cluster: Cluster) -> None:
    running = cluster.page("/flows/web")
    assert 'href="/do/flow-pause?flow=web"' in running
    assert "flumeng flow pause web" in running
    set_flow_state(Operator(cluster.store, "ann", "", NOON), "web", "suspended")
    paused = cluster.page("/flows/web")
    assert 'href="/do/flow-resume?flow=web"' in paused
    assert "flow-pause" not in paused
    assert "flow web is paused and delivers nothing, by ann" in text_of(paused)


def test_an_unknown_flow_is_a_404_with_the_nearest_name(cluster: Cluster) -> None:
    for part in PARTS:
        page = cluster.page(f"/flows/wib{part}", status=404)
        assert 'there is no flow "wib"; did you mean "web"?' in text_of(page)


def test_a_flow_that_is_deleted_meanwhile_says_by_whom(cluster: Cluster) -> None:
    client = cluster.client()
    assert client.get("/flows/web").status_code == 200
    delete_flow(Operator(cluster.store, "bob", "no longer needed", NOON), "web", discard=True)
    assert client.get("/flows/web").status_code == 200, "it is being deleted"
    for path in sorted(cluster.store.tree.znodes, reverse=True):
        if path.startswith("/flows/web"):
            del cluster.store.tree.znodes[path]
            cluster.store.tree.changed(path)
    for part in PARTS:
        answer = client.get(f"/flows/web{part}")
        assert answer.status_code == 404, part
        assert "flow web was deleted by bob" in text_of(answer.text), part


def test_a_damaged_record_is_named_on_each_page(cluster: Cluster) -> None:
    damage(cluster.store, paths.flow("web"))
    for part in PARTS:
        page = text_of(cluster.page(f"/flows/web{part}"))
        assert "/flows/web: " in page, part
    damage_of_revision = Cluster()
    damage(damage_of_revision.store, paths.revision("web", "1"))
    for part in PARTS:
        assert "revision" in text_of(damage_of_revision.page(f"/flows/web{part}"))


def test_a_missing_revision_is_named_and_the_rest_is_shown(cluster: Cluster) -> None:
    path = str(paths.revision("web", "1"))
    del cluster.store.tree.znodes[path]
    cluster.store.tree.changed(path)
    for part in PARTS:
        page = text_of(cluster.page(f"/flows/web{part}"))
        assert "revision 1 is missing" in page, part
    assert "collect.0" in text_of(cluster.page("/flows/web"))
    assert "web.n1.0.aa" in text_of(cluster.page("/flows/web/partitions"))


def test_a_text_of_a_newer_version_has_no_graph(cluster: Cluster) -> None:
    path = paths.revision("web", "1")
    revision = cluster.store.read(path)
    assert revision
    newer = records.Revision(text="flow: web\nnew: 1\n", author="x", reason="", time=0.0)
    cluster.store.write(path, newer, ANY)
    page = text_of(cluster.page("/flows/web"))
    assert "its text is not valid, so there is no graph" in page


def test_a_silent_node_leaves_the_lag_unknown_and_is_named(cluster: Cluster) -> None:
    cluster.accounts = None
    page = text_of(cluster.page("/flows/web"))
    assert "node n1 does not answer" in page
    assert "unknown ones in 1 partitions" in page
    assert "Node n1 does not answer" in text_of(cluster.page("/flows/web/partitions"))


def test_partitions_have_lag_rates_and_when_they_are_caught_up(cluster: Cluster) -> None:
    cluster.add_partition("web.n1.0.bb", 4000, 4000)
    page = text_of(cluster.page("/flows/web/partitions"))
    assert "700 events behind" in page
    assert page.index("web.n1.0.aa") < page.index("web.n1.0.bb")
    assert "web.n1.0.aa 700 60 s 2 1 - 300 1000" in page


def test_the_lag_of_a_partition_is_drawn_once_somebody_looks(cluster: Cluster) -> None:
    client = cluster.client()
    client.get("/flows/web/partitions")
    for _ in range(3):
        cluster.clock.now += STEP_SECONDS
        cluster.console.lags.sample()
    page = client.get("/flows/web/partitions").text
    assert 'aria-label="Lag of web.n1.0.aa, the last hour"' in page
    series = cluster.console.lags._flows["web"][0].of("web.n1.0.aa")
    assert series[-4:] == [700.0] * 4


def test_the_lag_of_the_flow_is_a_chart_and_a_table(cluster: Cluster) -> None:
    client = cluster.client()
    for _ in range(3):
        cluster.clock.now += STEP_SECONDS
        cluster.console.pictures.take()
    page = client.get("/flows/web").text
    assert "<title>now: 700 events</title>" in page
    assert "<title>10 s ago: 700 events</title>" in page
    assert "800</text>" in page, "the top of the axis"


@pytest.mark.long
def test_20_000_partitions_are_shown_by_100_in_under_a_second() -> None:
    cluster = Cluster()
    for number in range(20_000):
        cluster.add_partition(f"web.n1.1.{number:05}", 100, 100 + number)
    client = cluster.client()
    client.get("/flows/web/partitions")
    cluster.clock.now += 3.0
    began = time.process_time()
    page = client.get("/flows/web/partitions?page=2").text
    took = time.process_time() - began
    assert page.count('<th scope="row">') == 100
    assert "web.n1.1.19899" in page
    assert "Page 2 of 201" in text_of(page)
    assert took < 1.0
    found = client.get("/flows/web/partitions?q=1.00042").text
    assert found.count('<th scope="row">') == 1


@pytest.mark.parametrize(
    "path",
    [
        "/flows/web/partitions?page=abc",
        "/flows/web/partitions?page=0",
        "/flows/web/partitions?page=99999999999999999999",
        "/flows/web/events?lane=x",
        "/flows/web/events?tasks=-1",
        "/flows/web/revisions?old=x",
        f"/flows/web/partitions?q={'x' * 5000}",
        "/flows/web/tap/events?seconds=x",
    ],
)
def test_a_bad_parameter_is_a_sentence(cluster: Cluster, path: str) -> None:
    page = text_of(cluster.page(path, status=400))
    assert "expected" in page or "longer than" in page


def test_pages_beyond_the_last_are_empty(cluster: Cluster) -> None:
    assert '<th scope="row">' not in cluster.page("/flows/web/partitions?page=7")


def test_revisions_are_compared_and_going_back_is_rehearsed(cluster: Cluster) -> None:
    text = FLOW.replace("index: web", "index: web2")
    apply_flow(Operator(cluster.store, "bob", "another index", NOON), text)
    page = text_of(cluster.page("/flows/web/revisions"))
    assert "From revision 1 to 2" in page
    assert "index: web2}]" in page
    assert "another index" in page
    back = cluster.page("/flows/web/revisions?old=2&new=1&back=1")
    assert "Going back to revision 1 would do this" in back
    assert 'href="/do/flow-rollback?flow=web&amp;revision=1&amp;revision_seen=2"' in back
    assert "flumeng flow rollback web 1 --if-revision 2" in back
    assert "Going back" not in cluster.page("/flows/web/revisions?back=1", EVE)
    unknown = text_of(cluster.page("/flows/web/revisions?old=7&new=1&back=9"))
    assert "flow web has no revision 7" in unknown
    assert "flow web has no revision 9" in unknown


def test_a_rollout_has_its_steps_and_actions() -> None:
    text = FLOW + "rollout: {canary: 1, max_parallel: 2}\n"
    cluster = Cluster(text)
    apply_flow(Operator(cluster.store, "bob", "", NOON), text.replace("index: web", "index: x"))
    page = cluster.page("/flows/web/revisions")
    shown = text_of(page)
    assert "revision 2 runs in 0 of 1 tasks" in shown
    assert "canary of 1: now" in shown
    for verb in ("pause", "promote", "abort"):
        assert f'href="/do/rollout-{verb}?flow=web"' in page
    assert "/do/" not in cluster.page("/flows/web/revisions", EVE)


def test_events_and_audit_are_on_one_axis_and_can_be_chosen_by_lane(cluster: Cluster) -> None:
    page = text_of(cluster.page("/flows/web/events"))
    assert page.index("web/collect.0: status running to retrying") < page.index("flow apply web")
    people = text_of(cluster.page("/flows/web/events?lane=audit"))
    assert "running to retrying" not in people
    assert "flow apply web" in people


def test_dead_letters_are_counted_by_kind_with_a_sample(cluster: Cluster) -> None:
    kind = {
        "place": "filters[0].parse", "revision": 1, "reason": 'json: "..." at N', "letters": 12,
        "replayed": 2, "first": "2023-11-14 01:00:00", "last": "2023-11-14 02:00:00",
        "example": 'json: "x" at 7',
    }  # fmt: skip
    cluster.letters.counted = {
        "flow": "web", "path": "/dead", "letters": 12, "replayed": 2, "files": 3, "bytes": 5000,
        "kinds": [kind], "damaged": {"/dead/x": "/dead/x is damaged"},
    }  # fmt: skip
    cluster.letters.texts = [
        '{"dead_time": "t", "dead_place": "p", "dead_reason": "r", "body": "b"}'
    ]
    page = cluster.page("/flows/web/dead")
    shown = text_of(page)
    assert "12 dead letters in 3 files" in shown
    assert "left out: /dead/x is damaged" in shown
    assert "dead_reason=json%3A" in page, "what all of this kind have"
    assert "t p: r" in shown
    assert "/do/dead-replay?flow=web" in page
    assert "/do/" not in cluster.page("/flows/web/dead", EVE)
    assert cluster.letters.reads == 1, "viewers share what was read"


def test_dead_letters_elsewhere_say_so(cluster: Cluster) -> None:
    cluster.letters.error = UserError("/dead is not on this host")
    page = text_of(cluster.page("/flows/web/dead"))
    assert "/dead is not on this host." in page
    assert "flumeng flow dead list web" in page


def test_counts_of_tasks_are_shown(cluster: Cluster) -> None:
    one = {"1m": 600, "5m": 700, "15m": 800}
    cluster.counted = [
        {
            "flow": "web", "task": "collect.0", "epoch": 1, "since": NOON - 600, "source": "",
            "counts": {"processed": one, "dropped": one, "parse_errors": one, "dead_letters": one},
        }
    ]  # fmt: skip
    assert "collect.0 n1 retrying 1 1 1 600 600 600" in text_of(cluster.page("/flows/web/events"))


def test_a_flow_named_new_has_its_page(cluster: Cluster) -> None:
    apply_flow(Operator(cluster.store, "ann", "", NOON), FLOW.replace("flow: web", "flow: new"))
    assert "<h1>Flow new" in cluster.page("/flows/new/")
    assert 'href="/flows/new/"' in cluster.page("/flows/new/partitions")
    assert "<h1>A new flow" in cluster.page("/flows/new", ANN)


def test_every_link_leads_to_a_page(cluster: Cluster) -> None:
    cluster.letters.counted = {
        "flow": "web", "path": "/dead", "letters": 1, "replayed": 0, "files": 1, "bytes": 5,
        "kinds": [
            {
                "place": "filters[0].parse", "revision": 1, "reason": "bad", "letters": 1,
                "replayed": 0, "first": "a", "last": "b", "example": "bad",
            }
        ],
        "damaged": {},
    }  # fmt: skip
    text = FLOW.replace("index: web", "index: web2")
    apply_flow(Operator(cluster.store, "bob", "", NOON), text)
    client = cluster.client()
    pages = [client.get(f"/flows/web{part}").text for part in PARTS]
    pages.append(client.get("/flows/web/revisions?back=1").text)
    links = {html.unescape(link) for page in pages for link in re.findall(r'href="(/[^"]*)"', page)}
    assert any("flow-rollback" in link for link in links)
    links -= {link for link in links if link.startswith("/do/dead-")}  # they read the files
    refused = {link: client.get(link).status_code for link in sorted(links)}
    assert {link: status for link, status in refused.items() if status not in (200, 409)} == {}
