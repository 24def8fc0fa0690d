"""Read commands that look at sites of an inventory: on fake stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.context import open_site
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ABSENT
from flumeng.fleet.inventory import Site
from flumeng.platform.errors import UserError
from tests.testkit.cluster import come_live, new_cluster
from tests.testkit.command_line import NOON, Shell
from tests.testkit.store import FakeStore, FakeTree
from zkschema import paths, records

FLOW = "flow: {}\nsources: [tail: {{paths: [/a]}}]\nsinks: [noop]\n"
SITES = ("fra", "lon", "nyc")
READS = (("status",), ("flow", "list"), ("node", "list"))


def hosts(site: str) -> str:
    return f"zk-{site}:2181/flumeng"


def cluster(site: str) -> FakeTree:
    """A cluster with a flow and a node of the site's name, and a master; its only problem is an
    unplanned task."""
    store = new_cluster()
    apply_flow(Operator(store, "a", "", NOON), FLOW.format(f"{site}-web"))
    master = records.LiveMaster(host="h", pid=1, version="0", since=NOON)
    store.write(paths.live_master("m"), master, ABSENT)
    store.write(paths.node(f"{site}1"), records.Node(uuid=site, roles=("ingest",)), ABSENT)
    come_live(store, f"{site}1", uuid=site, since=NOON)
    return store.tree


def make_well(shared: FakeTree, site: str) -> None:
    store = FakeStore(shared)
    task = records.PlannedTask(kind="ingest", node=f"{site}1", epoch=1, state="assigned")
    store.write(paths.plan(f"{site}-web"), records.Plan(tasks={"ingest-0": task}), ABSENT)
    said = records.TaskStatus(epoch=1, revision=1, state="running")
    status = records.NodeStatus(assignment_version=0, tasks={f"{site}-web/ingest-0": said})
    store.write(paths.status(f"{site}1"), status, ABSENT)


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inventory(tmp_path, SITES)
    monkeypatch.setenv("FLUMENG_INVENTORY", str(tmp_path))
    return tmp_path


def write_inventory(directory: Path, sites: tuple[str, ...]) -> None:
    rows = "".join(f"  {s}: {{zookeeper: '{hosts(s)}', connect: 1 s, turn: 1 s}}\n" for s in sites)
    (directory / "sites.yaml").write_text(f"inventory: test\nsites:\n{rows}")


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell(FakeTree(), trees={hosts(site): cluster(site) for site in SITES})
    yield shell
    shell.thawed.set()


@pytest.mark.usefixtures("inventory")
@pytest.mark.parametrize("zk", [None, hosts("nyc")])
def test_site_option_overrides_the_cluster_of_the_environment(shell: Shell, zk: str | None) -> None:
    flows = shell.run("flow", "list", "--site", "lon", zk=zk)
    assert flows.stdout.splitlines()[1].startswith("lon-web\trunning\t1\t")
    nodes = shell.run("node", "list", "--site", "lon", zk=zk)
    assert nodes.stdout.splitlines()[1].startswith("lon1\tyes\t")
    assert "flow lon-web is not planned yet" in shell.run("status", "--site", "lon", zk=zk).stdout


@pytest.mark.parametrize("words", READS, ids=" ".join)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "no cluster is given: use --zk"),
        (("--zk", "zk:1/c", "--site", "fra"), "one of --zk, --site and --all-sites"),
        (("--zk", "zk:1/c", "--all-sites"), "one of --zk, --site and --all-sites"),
        (("--site", "fra", "--all-sites"), "one of --zk, --site and --all-sites"),
        (("--site", "fra"), "need --inventory DIR (or FLUMENG_INVENTORY)"),
        (("--all-sites",), "need --inventory DIR (or FLUMENG_INVENTORY)"),
    ],
)
def test_cluster_named_in_two_ways_is_wrong_input(
    shell: Shell, words: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    result = shell.run(*words, *options, zk=None)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_an_unknown_site_is_named_with_the_nearest(shell: Shell, inventory: Path) -> None:
    result = shell.run("status", "--inventory", inventory, "--site", "lom", zk=None)
    assert result.exit_code == 2
    assert result.stderr == 'flumeng: there is no site "lom": did you mean "lon"?\n'


@pytest.mark.usefixtures("inventory")
def test_lists_of_all_sites_have_a_column_for_the_site(shell: Shell) -> None:
    flows = shell.run("flow", "list", "--all-sites", zk=None)
    assert flows.exit_code == 0
    lines = [line.split("\t") for line in flows.stdout.splitlines()]
    assert lines[0][:3] == ["SITE", "FLOW", "STATE"]
    assert [line[:3] for line in lines[1:]] == [
        ["fra", "fra-web", "running"],
        ["lon", "lon-web", "running"],
        ["nyc", "nyc-web", "running"],
    ]
    rows = shell.json("node", "list", "--all-sites")
    assert [(row["site"], row["node"]) for row in rows] == [(s, f"{s}1") for s in SITES]
    assert all(not shared.stores[1:] for shared in shell.trees.values()), "a session is left"


@pytest.mark.usefixtures("inventory")
def test_status_of_all_sites_is_healthy_when_each_is(shell: Shell) -> None:
    for site in SITES[1:]:
        make_well(shell.trees[hosts(site)], site)
    shown = shell.run("status", "--all-sites", zk=None)
    assert shown.exit_code == 1
    assert shown.stdout.splitlines() == [
        "2 of 3 sites are ok",
        "- site fra: flow fra-web is not planned yet",
        "  wait: a master plans it as soon as it sees it",
        "SITE\tHEALTH\tMASTERS\tNODES\tFLOWS\tLAG",
        "fra\tdegraded\t1\t1/1\t1/1\t0",
        "lon\tok\t1\t1/1\t1/1\t0",
        "nyc\tok\t1\t1/1\t1/1\t0",
    ]
    make_well(shell.trees[hosts("fra")], "fra")
    assert shell.run("status", "--all-sites", zk=None).exit_code == 0
    assert shell.json("status", "--all-sites")["lon"] == shell.json("status", "--site", "lon")


@pytest.mark.slow
@pytest.mark.usefixtures("inventory")
@pytest.mark.parametrize("words", [(), ("shell", "-c")], ids=["once", "in the shell"])
def test_frozen_or_absent_site_does_not_delay_the_others(
    shell: Shell, words: tuple[str, ...]
) -> None:
    for site in SITES:
        make_well(shell.trees[hosts(site)], site)
    shell.frozen, shell.away = {hosts("fra")}, {hosts("nyc")}

    def run(command: str) -> tuple[int, str, str]:
        begun = time.monotonic()
        given = (command,) if words else command.split()
        result = shell.run(*words, *given, zk=None)
        assert time.monotonic() - begun < 10
        return result.exit_code, result.stdout, result.stderr

    code, told, why = run("flow list --all-sites")
    assert (code, [line[:11] for line in told.splitlines()[1:]]) == (4, ["lon\tlon-web"])
    assert why.splitlines()[:2] == [
        "flumeng: site fra cannot be read: no answer within 2 s",
        f"flumeng: site nyc cannot be read: ZooKeeper at {hosts('nyc')} did not answer",
    ]
    code, told, _ = run("status --all-sites")
    assert code == 1
    assert told.splitlines()[:3] == [
        "1 of 3 sites is ok",
        "- site fra cannot be read: no answer within 2 s",
        f"- site nyc cannot be read: ZooKeeper at {hosts('nyc')} did not answer",
    ]
    assert "fra\tunreadable\t-\t-\t-\t-\nlon\tok\t" in told


@pytest.mark.usefixtures("inventory")
def test_json_of_all_sites_gives_the_reason_for_an_unreadable_site(shell: Shell) -> None:
    shell.away = {hosts("nyc")}
    status = shell.json("status", "--all-sites")
    assert status["nyc"] == {"error": f"ZooKeeper at {hosts('nyc')} did not answer"}
    assert status["fra"]["flows"][0]["flow"] == "fra-web"
    assert {row["site"] for row in shell.json("flow", "list", "--all-sites")} == {"fra", "lon"}


def test_site_without_its_secret_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUMENG_SECRETS", raising=False)
    with pytest.raises(UserError, match="there is no secret fra-zookeeper: set FLUMENG_SECRET_FRA"):
        open_site(Site("fra", "127.0.0.1:1/c", credential="${secret:fra-zookeeper}"))


@pytest.mark.slow
def test_eighty_frozen_sites_of_two_hundred_delay_no_others(shell: Shell, inventory: Path) -> None:
    names = tuple(f"s{number:03}" for number in range(200))
    write_inventory(inventory, names)
    shell.tree = cluster("any")
    shell.frozen = {hosts(name) for name in names[:80]}
    begun = time.monotonic()
    result = shell.run("node", "list", "--all-sites", zk=None)
    assert time.monotonic() - begun < 20
    assert result.exit_code == 4
    assert [line[:4] for line in result.stdout.splitlines()[1:]] == [*names[80:]]
    assert len(result.stderr.splitlines()) == 80


@pytest.mark.usefixtures("inventory")
def test_the_shell_keeps_no_connection_to_a_site(shell: Shell) -> None:
    shell.tree = cluster("own")
    shell.run(
        "shell", "-c", "flow list", "-c", "flow list --site fra", "-c", "flow list --site fra"
    )
    assert shell.connected == ["zk:1/c", hosts("fra"), hosts("fra")]
