"""Lists of a large cluster: 1,000 flows, 400 nodes and 20,000 journals.

Protects that pages stay small and quick, and that one viewer's request costs ZooKeeper nothing
that another one has paid for.
"""

from __future__ import annotations

import time

import pytest

from tests.unit.console.big_cluster import PAGES, Cluster, first_cells, large, text_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return large()


def test_flows_are_shown_in_pages_of_100(cluster: Cluster) -> None:
    page = cluster.page("/flows?sort=name&page=3")
    assert first_cells(page) == [f"f{number:04}" for number in range(200, 300)]
    assert "1000 flows" in text_of(page)


def test_page_of_flows_takes_under_100_ms(cluster: Cluster) -> None:
    for number in range(360):
        values = {f"flow f{flow:04} lag": float(number * flow % 97) for flow in range(1000)}
        cluster.console.pictures.history.add(values, number * 10.0)
    cluster.page("/flows")
    took = []
    for number in range(5):
        began = time.process_time()
        cluster.page(f"/flows?page={number + 1}")
        took.append(time.process_time() - began)
    assert min(took) < 0.1


@pytest.mark.parametrize("sort", ["lag", "age", "name", "state"])
def test_flows_have_each_order(cluster: Cluster, sort: str) -> None:
    assert len(first_cells(cluster.page(f"/flows?sort={sort}"))) == 100


def test_flows_are_found_by_part_of_name_label_and_state(cluster: Cluster) -> None:
    assert first_cells(cluster.page("/flows?q=F0123")) == ["f0123"]
    assert "143 of 1000 flows" in text_of(cluster.page("/flows?q=team%3Dt3"))
    assert "1000 flows" in text_of(cluster.page("/flows?q=running"))
    assert "1 of 1000 flows" in text_of(cluster.page("/flows?q=team%3Dt3+0976"))


def test_nodes_are_grouped_by_zone_and_found_by_label(cluster: Cluster) -> None:
    page = text_of(cluster.page("/nodes"))
    assert "400 of 400 are live" in page
    assert "Zone z0" in page
    assert "Zone z1" not in page
    assert "44 of 400 nodes" in text_of(cluster.page("/nodes?q=rack%3Dr8"))


def test_journals_of_a_node_are_on_its_page(cluster: Cluster) -> None:
    page = text_of(cluster.page("/nodes/n007"))
    assert "Journals (50)" in page
    assert "ingest.0" in page


@pytest.mark.parametrize("url", [*PAGES, "/nodes/n007", "/queues/f0001"])
def test_second_viewer_costs_zookeeper_nothing(cluster: Cluster, url: str) -> None:
    cluster.page(url)
    before = cluster.console.copy.reads
    cluster.page(url)
    assert cluster.console.copy.reads == before


@pytest.mark.parametrize("url", [*PAGES, "/nodes/n007"])
def test_page_is_bounded(cluster: Cluster, url: str) -> None:
    assert len(cluster.page(url)) < 400_000


def test_search_finds_names_of_each_kind(cluster: Cluster) -> None:
    page = text_of(cluster.page("/search?q=f0123"))
    assert "Flows (1)" in page
    assert "Journals (20)" in page
    assert "Nodes" not in page


def test_single_hit_goes_straight_there(cluster: Cluster) -> None:
    answer = cluster.client.get("/search?q=00000011")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/journals/f0017.n017.0.00000011"
