"""The main job: events over TCP into a journal, through Spark, exactly once into Parquet.

Starts ``flumeng standalone`` in a directory of its own, sends syslog lines to it, waits for the
acks and counts what is in the lake. Ends with 0 only when every event is there exactly once.

With ``--secure`` the cluster has an authority of its own: every process proves who it is, all that
goes over a socket is encrypted, and so is the journal on its disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flumeng.agent.standalone import embedded
from flumeng.agent.standalone.standalone import NODE
from flumeng.control.zookeeper import Store
from flumeng.control.zookeeper.kazoo_store import connect
from flumeng.journal.serving.client import JournalClient
from flumeng.platform.errors import FlumengError
from flumeng.platform.security.credentials import Keystore
from flumeng.platform.security.enrolment import HOST_ROLES, create_authority
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.roles import DIRECTORY
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN

FLOW_FILE = Path(__file__).parent.parent / "conf" / "flows" / "quickstart.yaml"
FLUMENG = Path(sys.executable).with_name("flumeng")
FLOW = "quickstart"
CHUNK_EVENTS = 1000
LINE_BYTES = 200
PATIENCE_SECONDS = 120.0
KEY = "FLUMENG_SECRET_QUICKSTART_JOURNAL"
DAYS = 30.0


@dataclass
class Seen:
    """How far the events have come."""

    sent: int = 0
    journal: int = 0
    acked: int = 0
    committing: bool = False


def secure(folder: Path) -> Path:
    """Give this run's processes, and whoever runs it, what proves who they are, and the journal a
    key. The directory of their certificates."""
    now, identity = utc_now(), folder / "identity"
    issuer = create_authority(folder / "authority", FLOW, None, now)
    roles = [*HOST_ROLES, "master", "zookeeper", "admin"]
    issuer.fill(identity, roles, NODE, ["127.0.0.1", "localhost"], days=DAYS, now=now)
    os.environ[DIRECTORY] = str(identity)
    os.environ[KEY] = secrets.token_hex(32)
    return identity


def client_tls(identity: Path) -> ssl.SSLContext:
    """What the sender of the events proves, and of whom it wants proof."""
    mine = Keystore(identity, "admin")
    context = ssl.create_default_context(cafile=str(mine.ca))
    context.load_cert_chain(mine.certificate, mine.key)
    return context


def flow_text(port: int, lake: Path, identity: Path | None) -> str:
    """The shipped flow with a free port and this run's lake."""
    flow = yaml.safe_load(FLOW_FILE.read_text())
    syslog = flow["sources"][0]["syslog"]
    syslog["listen"] = f"127.0.0.1:{port}"
    if identity is not None:
        own = Keystore(identity, "node")
        files = {"certificate": own.certificate, "key": own.key, "client_ca": own.ca}
        syslog["tls"] = {name: str(file) for name, file in files.items()}
        flow["journal"] = {"encryption": {"key": "${secret:quickstart-journal}"}}
    flow["sinks"][0]["files"]["path"] = f"{lake}/dt=%Y-%m-%d"
    return str(yaml.safe_dump(flow, sort_keys=False))


def lines(events: int) -> Iterator[bytes]:
    """Chunks of RFC 5424 lines of 200 bytes each, numbered from 0."""
    start = datetime.now(UTC)
    for first in range(0, events, CHUNK_EVENTS):
        chunk = []
        for number in range(first, min(first + CHUNK_EVENTS, events)):
            when = (start + timedelta(milliseconds=number)).isoformat(timespec="milliseconds")
            line = (
                f"<{number % 192}>1 {when} host{number % 50:02d} shop {number % 9000} order - "
                f"event={number} user={number * 7919 % 100003} status=ok "
            )
            chunk.append(line.encode().ljust(LINE_BYTES - 1, b"."))
        yield b"\n".join(chunk) + b"\n"


def send(port: int, events: int, seen: Seen, tls: ssl.SSLContext | None) -> None:
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        if tls is not None:
            connection = stack.enter_context(
                tls.wrap_socket(connection, server_hostname="127.0.0.1")
            )
        for chunk in lines(events):
            connection.sendall(chunk)
            seen.sent += chunk.count(b"\n")


def safe_events(address: str) -> int:
    with JournalClient(address) as client:
        return sum(position.safe for position in client.positions().values())


def look(store: Store, seen: Seen) -> None:
    """Read the journals' ends from the node's workers, and the acks from ZooKeeper: with the last
    one a commit begins, and once that has ended all is in the lake."""
    (name, *_) = [*store.children(paths.live_nodes()), NODE]
    live = store.read(paths.live_node(name))
    if live is not None and all(live.value.addresses):
        seen.journal = sum(safe_events(address) for address in live.value.addresses)
    acks = store.read_many(
        [paths.ack(FLOW, CURSOR_MAIN, p) for p in store.children(paths.cursor(FLOW, CURSOR_MAIN))]
    )
    seen.acked = sum(ack.value.offset for ack in acks if ack)
    seen.committing = bool(store.children(paths.commits(FLOW)))


def run_events(
    store: Store, port: int, events: int, console: Console, tls: ssl.SSLContext | None
) -> Seen:
    """Send and wait until all is in the lake, or nothing has moved for two minutes."""
    seen = Seen()
    sender = threading.Thread(target=send, args=(port, events, seen, tls), daemon=True)
    sender.start()
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bars = [progress.add_task(name, total=events) for name in ("sent", "journal", "acked")]
        moved, last = time.monotonic(), -1
        while time.monotonic() - moved < PATIENCE_SECONDS:
            look(store, seen)
            for bar, value in zip(bars, (seen.sent, seen.journal, seen.acked), strict=True):
                progress.update(bar, completed=value)
            if seen.sent + seen.journal + seen.acked != last:
                moved, last = time.monotonic(), seen.sent + seen.journal + seen.acked
            if seen.acked >= events and not seen.committing:
                break
            time.sleep(0.1)
    return seen


def count_lake(lake: Path) -> tuple[int, int]:
    """Rows in the lake, and how many of them have an id that no other has."""
    if not any(lake.glob("*/*.parquet")):
        return 0, 0
    table = ds.dataset(lake, format="parquet").to_table(columns=["journal", "seq"])
    ids = pc.binary_join_element_wise(table["journal"], table["seq"].cast("string"), "-")
    return table.num_rows, pc.count_distinct(ids).as_py()


def await_ready(standalone: subprocess.Popen[str]) -> str:
    """The connect string from the line that standalone prints when all flows run."""
    assert standalone.stdout is not None
    for line in standalone.stdout:
        ready = re.fullmatch(r"ready zk=(\S+) metrics=\S+\n", line)
        if ready:
            return ready[1]
    standalone.wait()
    sys.exit("flumeng standalone ended before it was ready")


def say_what_next(
    console: Console, hosts: str, lake: Path, port: int, identity: Path | None
) -> None:
    proof = f"\n  export {DIRECTORY}={identity}" if identity else ""
    sender = (
        f'logger --server 127.0.0.1 --port {port} --tcp --rfc5424 "hello, lake"'
        if identity is None
        else f"openssl s_client -connect 127.0.0.1:{port} -CAfile {identity}/ca.pem "
        f"-cert {identity}/admin.pem -key {identity}/admin.key"
    )
    console.print(
        f"""
It goes on running until Ctrl-C. Try, in another terminal:
  export FLUMENG_ZK={hosts}{proof}
  {FLUMENG} status
  {FLUMENG} flow show {FLOW}
  {FLUMENG} ack list
  {sender}
The lake is {lake}.""",
        soft_wrap=True,
        highlight=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, metavar="N", help="how many to send")
    parser.add_argument("--keep", action="store_true", help="leave it running and say what to try")
    parser.add_argument(
        "--secure", action="store_true", help="with certificates, TLS and an encrypted journal"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    data = Path(tempfile.mkdtemp(prefix="flumeng-quickstart-"))
    lake, port, flow = data / "lake", embedded.free_port(), data / "quickstart.yaml"
    identity = secure(data) if given.secure else None
    tls = client_tls(identity) if identity else None
    flow.write_text(flow_text(port, lake, identity))
    console.print(f"starting flumeng in {data} (Spark takes a few seconds)", highlight=False)
    started = time.monotonic()
    standalone = subprocess.Popen(
        [FLUMENG, "standalone", "--data", data / "state", "--flow", flow],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        hosts = await_ready(standalone)
        console.print(f"ready after {time.monotonic() - started:.1f} s", highlight=False)
        store = connect(hosts)
        started = time.monotonic()
        seen = run_events(store, port, given.events, console, tls)
        seconds = time.monotonic() - started
        store.close()
        rows, ids = count_lake(lake)
        table = Table("what", "count")
        for what, count in (
            ("events sent", seen.sent),
            ("in the journal", seen.journal),
            ("in the lake", rows),
            ("distinct ids", ids),
            ("acks", seen.acked),
        ):
            table.add_row(what, f"{count:,}")
        table.add_row("seconds", f"{seconds:.1f}")
        console.print(table)
        good = seen.sent == seen.journal == rows == ids == seen.acked == given.events
        console.print("every event is in the lake exactly once" if good else "[red]NOT all there")
        if given.keep:
            say_what_next(console, hosts, lake, port, identity)
            standalone.wait()
        else:
            standalone.send_signal(signal.SIGTERM)
            standalone.wait()
            console.print(f"stopped; the lake is {lake}", highlight=False)
    except KeyboardInterrupt:
        return 130
    except FlumengError as error:
        console.print(f"[red]{error}")
        return 1
    finally:
        if standalone.poll() is None:
            standalone.send_signal(signal.SIGTERM)
            standalone.wait()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
