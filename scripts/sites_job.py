"""Three data centres on this machine: a ZooKeeper, a master and a node each, and an inventory.

The inventory is that of ``conf/sites``; what only real data centres have is exchanged: addresses,
paths, times, windows of the week. Every command of ``docs/tutorials/three-sites.md``, or with
``--relay`` of ``docs/tutorials/events-between-sites.md``, is run on them as it is written, and what
it prints is compared with the page. Ends with 0 only when all agrees.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from console_page import Bash, agrees, examples
from flumeng.agent.standalone import embedded
from flumeng.agent.standalone.standalone import NODE

TOP = Path(__file__).parent.parent
TUTORIALS = TOP / "docs" / "tutorials"
EXAMPLE = TOP / "conf" / "sites"
BIN = Path(sys.executable).parent
COMMAND_SECONDS = 120.0
SOAK = "1 s"
CANARY_SETTLE = "15 s"
"""So long the page waits for a push that fails."""
LOCAL: Mapping[str, tuple[tuple[str, str], ...]] = {
    "base/flows/devices.yaml": (
        ("0.0.0.0:5514", "127.0.0.1:${port}"),
        ("/var/lib/lake/devices", "${lake}/${site}/devices"),
    ),
    "base/flows/web.yaml": (("/var/log/nginx", "${logs}/${site}"),),
    "sites/nyc/flows/devices.yaml": (("0.0.0.0:5515", "127.0.0.1:${tcp_port}"),),
    "sites/nyc/cluster.yaml": (("nyc-web1", NODE),),
}
"""In which files of the example what is exchanged."""
BY_HAND = """\
# Made by hand, before there was an inventory.
flow: audit
sources:
  - tail: {{paths: ["{folder}/logs/{site}/audit.txt"]}}
sinks:
  - files: {{path: "{folder}/lake/{site}/audit/dt=%Y-%m-%d"}}
"""
"""A flow that each site has from its start, so that its collector runs already."""
VARIABLES = "sites.env"
GATEWAY = 3
"""A gateway listens so many ports behind the ``--port`` of its node."""


def write_inventory(directory: Path, addresses: Mapping[str, str]) -> None:
    """The example for these sites: name -> connect string."""
    shutil.copytree(EXAMPLE, directory)
    for name, pairs in LOCAL.items():
        path = directory / name
        text = path.read_text()
        for old, new in pairs:
            assert old in text, f"{path}: no {old}"
            text = text.replace(old, new)
        path.write_text(text)
    cluster = directory / "base" / "cluster.yaml"
    cluster.write_text(f"{cluster.read_text()}nodes:\n  {NODE}: {{labels: {{role: web}}}}\n")
    path = directory / "sites.yaml"
    found = yaml.safe_load(path.read_text())
    found["variables"] |= {"lake": f"{directory.parent}/lake", "logs": f"{directory.parent}/logs"}
    for name, site in found["sites"].items():
        site["zookeeper"] = addresses[name]
        ports = {key: str(embedded.free_port()) for key in ("port", "tcp_port")}
        site["variables"] = ports | site.get("variables", {}) | {"lake": f"{directory.parent}/lake"}
    for wave in found["waves"]:
        wave.pop("windows", None)
        wave["soak"] = SOAK
    found["waves"][0]["settle"] = CANARY_SETTLE
    path.write_text(yaml.safe_dump(found, sort_keys=False))


@contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """The sites of the example, each below a directory of its name: name -> connect string."""
    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in yaml.safe_load((EXAMPLE / "sites.yaml").read_text())["sites"]:
            flow = folder / f"{name}-audit.yaml"
            flow.write_text(BY_HAND.format(folder=folder, site=name))
            with (folder / f"{name}.log").open("w") as log:
                started[name] = subprocess.Popen(
                    [BIN / "flumeng", "standalone", "--data", folder / name, "--flow", flow],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        yield {name: _address(name, process, folder) for name, process in started.items()}
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.wait()


def _address(name: str, process: subprocess.Popen[str], folder: Path) -> str:
    """The connect string from the line that standalone prints when it is up."""
    assert process.stdout is not None
    ready = re.fullmatch(r"ready zk=(\S+) metrics=\S+\n", process.stdout.readline())
    if ready is None:
        sys.exit(f"site {name} ended before it was ready: see {folder / name}.log")
    return ready[1]


def environment() -> dict[str, str]:
    """That of the page: ``flumeng`` is on the path, and no cluster is named."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FLUMENG_")}
    return own | {"PATH": f"{BIN}:{os.environ['PATH']}"}


def write_variables(file: Path, addresses: Mapping[str, str]) -> None:
    """Write what the page about events takes from a file: a connect string for each site, and a
    port for a gateway's node."""
    named = {name.upper(): address for name, address in addresses.items()}
    named["PORT"] = str(embedded.free_port() - GATEWAY)
    file.write_text("".join(f"{name}={value}\n" for name, value in named.items()))


def run_page(folder: Path, page: Path) -> bool:
    """Return whether each command printed the text of the page."""
    bash = Bash(folder, environment())
    try:
        for example in examples(page.read_text()):
            print(f"$ {example.command}", flush=True)
            printed = bash.run(example.command, COMMAND_SECONDS)
            print(printed.strip(), flush=True)
            if not agrees(example.expected, printed):
                print(f"\n{page}:{example.line} says that this prints\n{example.expected}")
                return False
    finally:
        bash.end()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sites", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="where all of it lies")
    parser.add_argument("--relay", action="store_true", help="the page about events between sites")
    parser.add_argument("--keep", action="store_true", help="leave them running and say how to use")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(given.data or tempfile.mkdtemp(prefix="flumeng-sites-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"scripts/sites: {folder} is not empty")
    print(f"starting three sites in {folder}", flush=True)
    started = time.monotonic()
    try:
        with running(folder) as addresses:
            write_inventory(folder / "inventory", addresses)
            write_variables(folder / VARIABLES, addresses)
            print(f"ready after {time.monotonic() - started:.1f} s", flush=True)
            name = "events-between-sites.md" if given.relay else "three-sites.md"
            good = run_page(folder, TUTORIALS / name)
            print("every command did what the page says" if good else "NOT as the page says")
            if given.keep:
                say_what_next(folder)
                signal.pause()
    except KeyboardInterrupt:
        return 130
    return 0 if good else 1


def say_what_next(folder: Path) -> None:
    print(
        f"""
They go on running until Ctrl-C. Try, in another terminal:
  export PATH={BIN}:$PATH FLUMENG_INVENTORY={folder}/inventory
  export FLUMENG_SECRET_FRA_ZOOKEEPER=push:secret
  flumeng push status
  flumeng status --all-sites
Change what is in {folder}/inventory, and push it:
  flumeng push plan
  flumeng push apply""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
