"""What it takes to plan a push to hundreds of sites, and to carry it out, near and far.

Light sites: chroots on a few real ZooKeepers, each with a real master and a node that says that it
runs what it is assigned. The tool is run as an operator runs it, from its start to its end, through
links that count round trips. First each site gets all flows, then nothing is to be done, then one
flow is changed in all. After each apply every site is looked at: whether it holds what it should.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benches.light_sites import NODE
from benches.processes import cpu_seconds
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from tests.testkit.counting import Counts
from tests.testkit.links import Links
from tests.testkit.store import RealZooKeeper
from zkschema import paths

GROUPS = 10
NOTHING_TO_DO, CHANGES = 0, 5
FIRST_PORT = 6000
NEVER_SECONDS = 600
FLOW = """\
flow: {name}
sources:
  - syslog: {{listen: "127.0.0.1:{port}", protocol: tcp}}
batch: {{seconds: 0.5}}
filters:
  - parse: {{format: syslog}}
  - where: "severity <= {severity}"
sinks:
  - files: {{path: "${{lake}}/{name}/dt=%Y-%m-%d", format: parquet}}
"""
GROUP_FLOW = "flow: {name}\nbatch: {{seconds: {seconds}}}\n"


@dataclass(frozen=True)
class Run:
    """One run of the tool. ``round_trips`` are those of each site."""

    seconds: float
    cpu_seconds: float
    rss_mb: float
    round_trips: Sequence[int]
    printed: bytes


@dataclass(frozen=True)
class Shape:
    """``ports``: site -> port of its server. ``parallel`` is that of the wave."""

    ports: Mapping[str, int]
    flows: int
    parallel: str


@dataclass
class World:
    """``chroot`` is that above all sites' own."""

    inventory: Path
    links: Links
    ports: Mapping[str, int]
    chroot: str
    light: Sequence[subprocess.Popen[bytes]]

    def push(self, *words: str, expect: int) -> Run:
        before = self._counts()
        began = time.monotonic()
        command = [sys.executable, "-m", "cli.main", "push", *words]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [*command, "--inventory", str(self.inventory)], stdout=output, stderr=output
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - began
            output.seek(0)
            printed = output.read()
        assert process.returncode == expect, printed[-5000:].decode()
        after = self._counts()
        return Run(
            seconds,
            used.ru_utime + used.ru_stime,
            used.ru_maxrss * 1024 / 1e6,
            [counts.since(before[site]).round_trips for site, counts in after.items()],
            printed,
        )

    def check(self, revisions: Mapping[str, int], severity: int) -> None:
        """Each site holds these flows in these revisions, with its own texts, and runs them."""
        for number, (site, port) in enumerate(self.ports.items()):
            store = connect(f"127.0.0.1:{port}{self.chroot}/{site}")
            try:
                _check_site(store, site, number, revisions, severity)
            finally:
                store.close()

    def _counts(self) -> dict[str, Counts]:
        return {site: self.links[site].counts for site in self.ports}


def run(
    sites: int = 200, flows: int = 20, servers: int = 4, delay_ms: int = 150, parallel: str = "all"
) -> dict[str, object]:
    """Plans and applies, without a delay and with one for each direction."""
    with tempfile.TemporaryDirectory(prefix="flumeng-bench-") as folder, ExitStack() as stack:
        started = [RealZooKeeper(Path(folder) / f"zookeeper-{n}") for n in range(servers)]
        for server in started:
            server.launch()
            stack.callback(server.kill)
        for server in started:
            server.wait_answering()
        names = [f"s{number:03d}" for number in range(sites)]
        shape = Shape(
            {name: started[number % servers].port for number, name in enumerate(names)},
            flows,
            parallel,
        )
        near = _measure(Path(folder) / "near", shape, 0.0)
        far = _measure(Path(folder) / "far", shape, delay_ms / 1000)
    return {
        "sites": sites,
        "flows": flows,
        "servers": servers,
        "delay_ms": delay_ms,
        "plan_seconds": near["plan_seconds"],
        "apply_seconds": near["apply_seconds"],
        f"plan_seconds_{delay_ms}ms": far["plan_seconds"],
        f"apply_seconds_{delay_ms}ms": far["apply_seconds"],
        **{key: far[key] for key in ("round_trips_plan", "round_trips_apply")},
        "rss_mb": max(near["rss_mb"], far["rss_mb"]),
        "near": near,
        "far": far,
    }


def _measure(folder: Path, shape: Shape, delay_seconds: float) -> dict[str, Any]:
    with _world(folder, shape, delay_seconds) as world:
        names = [_flow(number) for number in range(shape.flows)]
        first = dict.fromkeys(names, 1)
        plans = {"new": world.push("plan", "--json", expect=CHANGES)}
        applies = {"new": world.push("apply", "--yes", expect=0)}
        world.check(first, severity=4)
        plans["nothing"] = world.push("plan", "--json", expect=NOTHING_TO_DO)
        _write_flow(world.inventory, 0, severity=5)
        plans["change"] = world.push("plan", "--json", expect=CHANGES)
        applies["change"] = world.push("apply", "--yes", expect=0)
        world.check({**first, names[0]: 2}, severity=5)
        runs = [*plans.values(), *applies.values()]
        return {
            "plan_seconds": round(max(run.seconds for run in plans.values()), 2),
            "apply_seconds": round(max(run.seconds for run in applies.values()), 2),
            "round_trips_plan": max(max(run.round_trips) for run in plans.values()),
            "round_trips_apply": max(max(run.round_trips) for run in applies.values()),
            "rss_mb": round(max(run.rss_mb for run in runs), 1),
            "plans": {name: _figures(run) for name, run in plans.items()},
            "applies": {name: _figures(run) for name, run in applies.items()},
            "sites_cpu_seconds": round(sum(cpu_seconds(one.pid) for one in world.light), 1),
        }


def _figures(run: Run) -> dict[str, object]:
    return {
        "seconds": round(run.seconds, 2),
        "cpu_seconds": round(run.cpu_seconds, 2),
        "round_trips_max": max(run.round_trips),
        "round_trips_mean": round(mean(run.round_trips), 1),
        "rss_mb": round(run.rss_mb, 1),
    }


@contextmanager
def _world(folder: Path, shape: Shape, delay_seconds: float) -> Iterator[World]:
    ports, chroot = shape.ports, f"/{folder.name}"
    with Links(ports, delay_seconds) as links, ExitStack() as stack:
        light = []
        for port in sorted(set(ports.values())):
            own = [site for site in ports if ports[site] == port]
            command = [sys.executable, "-m", "benches.light_sites", f"127.0.0.1:{port}{chroot}"]
            process = subprocess.Popen([*command, *own], stdout=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.kill)
            light.append(process)
        for process in light:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.stdout.close()
        addresses = {site: f"{links[site].address}{chroot}/{site}" for site in ports}
        _write_inventory(folder, addresses, shape)
        yield World(folder, links, ports, chroot, light)


def _write_inventory(folder: Path, addresses: Mapping[str, str], shape: Shape) -> None:
    sites = {
        site: {"zookeeper": address, "groups": [_group(number)], "variables": {"lake": _lake(site)}}
        for number, (site, address) in enumerate(addresses.items())
    }
    content = {
        "inventory": "bench",
        "groups": {_group(number): {} for number in range(GROUPS)},
        "sites": sites,
        "waves": [
            {"wave": "all", "rest": True, "parallel": shape.parallel, "settle": NEVER_SECONDS}
        ],
    }
    for part in ("base", *(f"groups/{_group(number)}" for number in range(GROUPS))):
        (folder / part / "flows").mkdir(parents=True)
    (folder / "sites.yaml").write_text(json.dumps(content, indent=1))
    for number in range(shape.flows):
        _write_flow(folder, number, severity=4)
        group = folder / "groups" / _group(number) / "flows" / f"{_flow(number)}.yaml"
        seconds = _batch_seconds(number, number)
        group.write_text(GROUP_FLOW.format(name=_flow(number), seconds=seconds))


def _write_flow(folder: Path, number: int, *, severity: int) -> None:
    name = _flow(number)
    text = FLOW.format(name=name, port=FIRST_PORT + number, severity=severity)
    (folder / "base" / "flows" / f"{name}.yaml").write_text(text)


def _check_site(
    store: Store, site: str, number: int, revisions: Mapping[str, int], severity: int
) -> None:
    flows = store.read_many([paths.flow(name) for name in revisions])
    found = {
        name: flow.value.revision
        for name, flow in zip(revisions, flows, strict=True)
        if flow is not None
    }
    assert found == revisions, (site, found)
    assert sorted(store.children(paths.flows())) == sorted(revisions), site
    texts = store.read_many([paths.revision(name, str(n)) for name, n in revisions.items()])
    for index, text in enumerate(texts):
        assert text is not None, site
        flow = yaml.safe_load(text.value.text)
        assert flow["batch"] == {"seconds": _batch_seconds(index, number)}, (site, flow)
        assert flow["sinks"][0]["files"]["path"].startswith(f"{_lake(site)}/{flow['flow']}/"), flow
        wanted = severity if index == 0 else 4
        assert flow["filters"][1] == {"where": f"severity <= {wanted}"}, (site, flow)
    status = store.read(paths.status(NODE))
    assert status is not None, site
    running = {
        key: task.revision for key, task in status.value.tasks.items() if task.state == "running"
    }
    wanted_tasks = {
        f"{name}/{task}": revision
        for name, revision in revisions.items()
        for task in ("collect.0", f"ingest.{NODE}")
    }
    assert running == wanted_tasks, (site, running)


def _batch_seconds(flow: int, site: int) -> float:
    """The group of the flow's number changes it."""
    return 0.7 if flow % GROUPS == site % GROUPS else 0.5


def _flow(number: int) -> str:
    return f"flow-{number:02d}"


def _group(number: int) -> str:
    return f"g{number % GROUPS}"


def _lake(site: str) -> str:
    return f"s3a://lake/{site}"
