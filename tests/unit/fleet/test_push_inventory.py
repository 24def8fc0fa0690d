"""An inventory's directory is read as a whole, and all its problems are reported at once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from flumeng.config.document import MAX_BYTES
from flumeng.fleet.inventory import Inventory, InventoryError, InventoryProblem
from flumeng.fleet.inventory import files as inventory_files
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render
from flumeng.platform.options.windows import Window

EXAMPLE = Path(__file__).parents[3] / "conf" / "sites"
SITES = """\
inventory: test
groups: {eu: {}, canary: {}}
sites:
  fra: {zookeeper: "zk.fra:2181/f", groups: [eu, canary]}
  lon: {zookeeper: "zk.lon:2181/f", groups: [eu]}
"""
FLOW = """\
flow: web
sources: [tail: {paths: [/a]}]
sinks: [files: {path: /lake}]
"""


def made(directory: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in {"sites.yaml": SITES, **files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


def read(directory: Path, files: Mapping[str, str | bytes]) -> Inventory:
    return read_inventory(made(directory, files))


def refused(directory: Path, files: Mapping[str, str | bytes]) -> list[str]:
    """``FILE:LINE: PATH: MESSAGE`` of each problem."""
    with pytest.raises(InventoryError) as found:
        read(directory, files)
    return str(found.value).splitlines()


def test_the_example_is_read_and_renders() -> None:
    inventory = read_inventory(EXAMPLE)
    assert {wave.name: wave.sites for wave in inventory.waves} == {
        "canary": ("dub",),
        "eu": ("fra",),
        "rest": ("nyc",),
    }
    rendered = render(inventory)
    assert list(rendered) == ["dub", "fra", "nyc"]
    assert rendered["nyc"]["capacity/nyc-web1/slots"] == "4"
    assert "path: s3a://lake-nyc/nyc/web/dt=%Y-%m-%d" in rendered["nyc"]["flow/web"]
    assert "retain_seconds: 30 d" in rendered["fra"]["flow/web"]
    assert "choke/devices" not in rendered["nyc"]


def test_options_of_sites_and_waves_are_read(tmp_path: Path) -> None:
    sites = """\
inventory: production
variables: {lake: /lake, tier: low}
groups:
  eu: {variables: {region: eu, tier: middle}}
sites:
  fra:
    zookeeper: zk1.fra:2181,zk2.fra:2181/flumeng
    groups: [eu]
    zone: eu-central
    labels: {tier: one}
    time_zone: Europe/Berlin
    variables: {tier: high, text: "$${x}"}
    credential: ${secret:fra-zookeeper}
    connect: 5 s
    turn: 2 min
  lon: {zookeeper: "zk.lon:2181/f"}
  osl: {zookeeper: "zk.osl:2181/f"}
waves:
  - {wave: first, groups: [eu], settle: 1 min, soak: 10 min, windows: ["mon 09:00-16:00"]}
  - {wave: second, rest: true, parallel: all, max_failures: 50%}
"""
    inventory = read(tmp_path, {"sites.yaml": sites})
    fra = inventory.sites["fra"]
    assert inventory.name == "production"
    assert fra.zookeeper == "zk1.fra:2181,zk2.fra:2181/flumeng"
    assert (fra.groups, fra.zone, fra.labels) == (("eu",), "eu-central", {"tier": "one"})
    assert fra.variables == {"lake": "/lake", "tier": "high", "region": "eu", "text": "${x}"}
    assert (fra.time_zone, fra.credential) == ("Europe/Berlin", "${secret:fra-zookeeper}")
    assert (fra.connect_seconds, fra.turn_seconds) == (5.0, 120.0)
    first, second = inventory.waves
    assert (first.sites, first.settle_seconds, first.soak_seconds) == (("fra",), 60.0, 600.0)
    assert first.windows == (Window(frozenset([0]), 540, 960),)
    assert (second.sites, second.parallel, second.max_failures) == (("lon", "osl"), 2, 1)


def test_all_sites_are_one_wave_without_waves(tmp_path: Path) -> None:
    (wave,) = read(tmp_path, {}).waves
    assert (wave.name, wave.sites, wave.parallel) == ("all", ("fra", "lon"), 1)


def test_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    sites = SITES.replace("groups: [eu]}", "groups: [ue]}")
    assert refused(
        tmp_path,
        {
            "sites.yaml": sites,
            "base/flows/web.yaml": "flow: Web\nsources: []\n",
            "base/flows/b.yaml": "flow: b\nplace: a: b\n",
            "base/cluster.yaml": "a: 1\na: 2\n",
            "groups/asia/cluster.yaml": "settings: {}\n",
        },
    ) == [
        "base/cluster.yaml:2: a: given twice; the first is in line 1",
        "base/flows/b.yaml:2: not YAML: mapping values are not allowed here",
        "base/flows/web.yaml:1: flow: expected 1 to 63 small letters, digits and dashes that do "
        'not start with a dash; found "Web"',
        "groups/asia: sites.yaml has no group asia; known here: eu, canary",
        'sites.yaml:5: sites.lon.groups[0]: unknown group "ue"; known here: eu, canary',
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("zookeeper: zk:2181", "expected host:port[,host:port]/chroot"),
        ("zookeeper: zk/f", "expected host:port"),
        ("zookeeper: zk:0/f", "expected a port from 1"),
        ("zookeeper: zk:2181/f/", "expected host:port[,host:port]/chroot"),
        ("zookeeper: zk:2181/f/../g", "expected host:port[,host:port]/chroot"),
        ('zookeeper: ",zk:2181/f"', "expected host:port"),
        ("{zookeeper: zk:1/f, time_zone: Mars/Base}", "expected the name of a time zone"),
        ("{zookeeper: zk:1/f, time_zone: Europe}", "expected the name of a time zone"),
        ("{zookeeper: zk:1/f, time_zone: ../../etc/passwd}", "expected the name of a time zone"),
        ("{zookeeper: zk:1/f, variables: {Lake: x}}", "expected a variable's name"),
        ("{zookeeper: zk:1/f, variables: {site: x}}", "is built in"),
        ('{zookeeper: zk:1/f, variables: {a: "${b}"}}', "cannot hold variables"),
        ("{zookeeper: zk:1/f, groups: [eu, eu]}", "given twice"),
        ("{zookeeper: zk:1/f, turn: soon}", "expected a duration"),
        ("{zookeeper: zk:1/f, zoo: x}", "unknown option"),
        ("{zookeeper: zk.fra:2181/f}", "this cluster already belongs to site fra"),
        ('{zookeeper: "zk.x:1,zk.FRA:2181/f"}', "this cluster already belongs to site fra"),
    ],
)
def test_invalid_site_is_reported(tmp_path: Path, line: str, told: str) -> None:
    options = line if line.startswith("{") else "{" + line + "}"
    (problem,) = refused(tmp_path, {"sites.yaml": f"{SITES}  bad: {options}\n"})
    assert problem.startswith("sites.yaml:6: sites.bad")
    assert told in problem


def test_a_credential_is_a_reference_and_is_never_shown(tmp_path: Path) -> None:
    sites = SITES + "  bad: {zookeeper: zk:1/f, credential: 'root:hunter2'}\n"
    (problem,) = refused(tmp_path, {"sites.yaml": sites})
    assert "sites.bad.credential: expected a reference to a secret" in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("waves", "told"),
    [
        ("{wave: a, groups: [canary]}", "sites.lon: is in no wave"),
        ("{wave: a, groups: [eu]}, {wave: b, sites: [lon]}", "site lon is in wave a already"),
        ("{wave: a, groups: [eu]}, {wave: a, rest: true}", "there is a wave a already"),
        ("{wave: a, rest: true}, {wave: b}", "has no sites"),
        ("{wave: a, rest: true, groups: [asia]}", 'unknown group "asia"'),
        ("{wave: a, rest: true, sites: [osl]}", 'unknown site "osl"'),
        ("{wave: a, rest: true, parallel: 0}", 'expected a number of sites from 1 on, or "all"'),
        ("{wave: a, rest: true, max_failures: 101%}", "expected a number of sites, or a share"),
        ("{wave: a, rest: true, windows: [never]}", "is no window"),
        ("{rest: true}", 'missing "wave"'),
    ],
)
def test_invalid_waves_are_reported(tmp_path: Path, waves: str, told: str) -> None:
    (problem,) = refused(tmp_path, {"sites.yaml": f"{SITES}waves: [{waves}]\n"})
    assert told in problem


def test_foreign_files_in_an_inventory_are_reported(tmp_path: Path) -> None:
    made(tmp_path, {"base/flows/web.yaml": FLOW, "base/flows/web.yml": FLOW, "notes.txt": "x"})
    made(tmp_path, {".git/config": "x", "README.md": "x", "base/flows/.web.yaml.swp": b"\xff"})
    outside = tmp_path.parent / f"{tmp_path.name}-outside.yaml"
    outside.write_text(FLOW)
    flows = tmp_path / "base" / "flows"
    (flows / "out.yaml").symlink_to(outside)
    (flows / "gone.yaml").symlink_to("nothing")
    (flows / "loop.yaml").symlink_to("loop.yaml")
    (flows / "dir.yaml").mkdir()
    os.mkfifo(flows / "fifo.yaml")
    (tmp_path / "sites" / "fra" / "flows").mkdir(parents=True)
    (tmp_path / "sites" / "fra" / "flows" / "web.yaml").symlink_to("../../../base/flows/web.yaml")
    assert refused(tmp_path, {}) == [
        "base/flows/dir.yaml: cannot be read: Is a directory",
        "base/flows/fifo.yaml: is no regular file",
        "base/flows/gone.yaml: links out of the directory, or to a missing file",
        "base/flows/loop.yaml: links out of the directory, or to a missing file",
        "base/flows/out.yaml: links out of the directory, or to a missing file",
        "base/flows/web.yml: is no part of an inventory: a flow's file ends in .yaml",
        "notes.txt: is no part of an inventory; known here: base, groups, sites, sites.yaml",
    ]


def test_two_files_of_a_layer_with_one_flow_are_reported(tmp_path: Path) -> None:
    files = {"base/flows/a.yaml": FLOW, "base/flows/b.yaml": f"# b\n{FLOW}"}
    assert refused(tmp_path, files) == [
        "base/flows/b.yaml:2: flow: flow web is also in base/flows/a.yaml"
    ]


def test_missing_directory_or_sites_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="is no directory"):
        read_inventory(tmp_path / "nothing")
    with pytest.raises(InventoryError, match=r"sites\.yaml: is missing"):
        read_inventory(tmp_path)
    (problem,) = refused(tmp_path, {"sites.yaml": "inventory: x\nsites: {}\n"})
    assert problem == "sites.yaml:2: sites: expected at least one site"


def test_inventory_digest_covers_all_its_files_and_no_others(tmp_path: Path) -> None:
    files = {"base/flows/web.yaml": FLOW}
    digest = read(tmp_path / "a", files).digest
    assert len(digest) == 32
    assert read(tmp_path / "b", {**files, "README.md": "x", ".git/HEAD": "x"}).digest == digest
    assert read(tmp_path / "c", {"base/flows/web.yaml": FLOW + "\n"}).digest != digest
    assert read(tmp_path / "d", {"base/flows/new.yaml": FLOW}).digest != digest


def test_the_revision_is_that_of_the_checkout(tmp_path: Path) -> None:
    directory = made(tmp_path / "repository" / "sites", {})

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ("git", *identity, "-C", str(directory), *words)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert read_inventory(directory).revision == ""
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD").strip()
    assert read_inventory(directory).revision == head
    (directory.parent / "other").write_text("x")
    assert read_inventory(directory).revision == head
    made(directory, {"base/flows/web.yaml": FLOW})
    assert read_inventory(directory).revision == f"{head}+"


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert read(tmp_path, {}).revision == ""


def test_a_git_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}{os.pathsep}{os.environ['PATH']}")
    started = time.monotonic()
    assert inventory_files.revision(tmp_path, seconds=0.2) == ""
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_thousand_sites_with_all_options_are_read(tmp_path: Path) -> None:
    site = SITES.splitlines()[3].partition("{")[2].removesuffix("}").replace("zk.fra", "zkN")
    more = "zone: zN, labels: {tier: one, a: b}, variables: {rack: rN, x: y}, turn: 90 s"
    lines = [f"  sN: {{{site}, {more}}}".replace("N", str(n)) for n in range(1000)]
    text = "\n".join([*SITES.splitlines()[:3], *lines])
    assert len(text) > MAX_BYTES
    assert len(read(tmp_path, {"sites.yaml": text}).sites) == 1000


def test_problem_names_its_file_line_and_sites() -> None:
    problem = InventoryProblem("base/flows/web.yaml", 3, "sinks", "wrong", ("fra", "lon"))
    said = str(InventoryError([problem]))
    assert said == "base/flows/web.yaml:3: sinks: wrong (sites fra, lon)"
