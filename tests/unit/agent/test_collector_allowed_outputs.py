"""A collector writes only to places that its node's policy file allows, for any requested
output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.collector.commit import Commits
from flumeng.agent.collector.daemon import bounded, require_allowed, require_catalog
from flumeng.agent.node.sink_paths import require_outside
from flumeng.config import Component, check_flow, spark
from flumeng.config.policy import Policy
from flumeng.connectors.files.options import Files
from flumeng.connectors.spark.options import Spark
from flumeng.control.zookeeper import ABSENT
from flumeng.platform.errors import UserError
from tests.testkit.cluster import add_flow, new_cluster
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths
from zkschema.records import Commit


def commits(store: FakeStore, lake: Path) -> Commits:
    return Commits(store, "web", "collect.0", bounded(Policy(outputs=(str(lake),))))


@pytest.mark.parametrize("hostile", ["source", "target", "staging"])
def test_commit_record_of_a_hostile_tree_moves_and_removes_nothing_elsewhere(
    tmp_path: Path, hostile: str
) -> None:
    lake, outside = tmp_path / "lake", tmp_path / "outside"
    lake.mkdir()
    outside.mkdir()
    (lake / "staged").write_text("events")
    (outside / "key").write_text("secret")
    staging, source, target = str(lake / "s"), str(lake / "staged"), str(lake / "shown")
    if hostile == "source":
        source = str(outside / "key")
    elif hostile == "target":
        target = str(outside / "key")
    else:
        staging = str(outside)
    store = new_cluster(FakeTree())
    add_flow(store)
    record = Commit(epoch=1, staging=(staging,), files=((source, target),))
    store.write(paths.commit("web", "collect.0@0"), record, ABSENT)
    with pytest.raises(UserError, match="does not allow to write to"):
        commits(store, lake).recover([])
    assert (outside / "key").read_text() == "secret"


def test_root_that_has_become_a_symlink_is_not_used_for_staging(tmp_path: Path) -> None:
    lake, outside = tmp_path / "lake", tmp_path / "outside"
    lake.mkdir()
    outside.mkdir()
    found = commits(FakeStore(FakeTree()), lake)
    found.stage(str(lake / "web"), "j.n.0.0", 1)
    (lake / "app").symlink_to(outside)
    with pytest.raises(UserError, match="does not allow to write to"):
        found.stage(str(lake / "app"), "j.n.0.0", 1)
    assert list(outside.iterdir()) == []


def test_table_must_be_in_a_catalog_of_the_session() -> None:
    part = Component("sink", "spark", Spark(format="iceberg", table="lake.web.events"))
    texts = {"conf": "{spark.sql.catalog.lake: org.apache.iceberg.spark.SparkCatalog}"}
    require_catalog(spark.read(texts), part)
    for texts in ({}, {"conf": "{spark.sql.catalog.Lake: x, spark.sql.catalog.lake.uri: x}"}):
        with pytest.raises(UserError, match=r"set spark\.sql\.catalog\.lake in spark\.conf"):
            require_catalog(spark.read(texts), part)


def test_no_sink_may_write_into_the_data_directory_of_its_node_or_around_it(tmp_path: Path) -> None:
    data = tmp_path / "n1" / "data"
    data.mkdir(parents=True)
    (tmp_path / "leads-in").symlink_to(data)

    def sinks(place: str) -> list[Component[Any]]:
        found: list[Component[Any]] = [Component("sink", "files", Files(path=place))]
        if "%" not in place and "{" not in place:
            writer = Spark(format="orc", path=place, mode="overwrite")
            found.append(Component("sink", "spark", writer))
        return found

    lakes = ("lake", "n1/data2", "n1/dat", "n1/lake/{app}", "n1/data-{app}", "lake/dt=%Y", "n1/x%Y")
    for place in (*(f"{tmp_path}/{lake}" for lake in lakes), f"s3a:/{data}", f"hdfs://{data}"):
        for part in sinks(place):
            require_outside(data, part)
    inside = ("", "/", "/journals", "/%Y", "{app}", "/journals/{app}")
    around = ("", "/n1", "/n1/", "/n1/{app}", "/n1/d{app}", "/{host}/data", "/leads-in/x")
    places = [f"{data}{path}" for path in inside] + [f"{tmp_path}{path}" for path in around]
    for place in (*places, f"file://{data}", f"/{data}", f"{data}//.", "//"):
        for part in sinks(place):
            with pytest.raises(UserError, match="the node's data directory"):
                require_outside(data, part)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("sinks: [files: {path: /elsewhere}]", "/elsewhere"),
        (
            "filters: [lookup: {on: [host], table: {csv: /etc/hosts.csv, "
            "schema: 'host STRING, rack INT'}}], sinks: [noop]",
            "/etc/hosts.csv",
        ),
    ],
)
def test_outputs_and_inputs_of_an_inner_branch_must_be_allowed_too(
    tmp_path: Path, part: str, said: str
) -> None:
    text = (
        "{flow: web, sources: [syslog: {listen: '127.0.0.1:0'}], "
        f"branches: [{{name: a, branches: [{{name: b, {part}}}]}}]}}"
    )
    spec, options = check_flow(text), spark.read({})
    with pytest.raises(UserError, match=said):
        require_allowed(spec, Policy(outputs=("/lake",), paths=("/lake",)), options, tmp_path)
    require_allowed(spec, Policy(outputs=("/",), paths=("/",)), options, tmp_path)


def test_executors_on_other_hosts_need_a_place_that_all_of_them_see(tmp_path: Path) -> None:
    text = (
        "{{flow: web, sources: [objects: {{paths: [{source}], format: lines}}], "
        "filters: [parse: {{format: syslog}}, where: 'severity <= 4', drop: [procid]], "
        "sinks: [files: {{path: {sink}}}]}}"
    )
    options = spark.read({"master": "spark://other:7077", "cores": "4"})
    every = Policy(outputs=("/", "s3a://a"), paths=("/", "s3a://a"))
    require_allowed(
        check_flow(text.format(source="s3a://a/b", sink="s3a://a/c")), every, options, tmp_path
    )
    for source, sink in (("/in", "s3a://a/c"), ("s3a://a/b", "/out")):
        spec = check_flow(text.format(source=source, sink=sink))
        with pytest.raises(UserError, match="executors of spark://other:7077 run on other hosts"):
            require_allowed(spec, every, options, tmp_path)
        require_allowed(spec, every, spark.read({}), tmp_path)
