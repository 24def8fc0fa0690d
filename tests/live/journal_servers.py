"""A journal server in a process of its own, and clients of every kind."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa

from flumeng.journal.serving.client import JournalClient
from flumeng.journal.serving.proof import Proof
from flumeng.journal.serving.tokens import Signer
from flumeng.platform.errors import UnavailableError
from flumeng.platform.scrubbing import Secret
from flumeng.platform.security.authority import Authority
from flumeng.platform.security.credentials import Credentials
from flumeng.platform.security.expiry import utc_now
from flumeng.platform.security.identity import Identity
from flumeng.platform.security.roles import Role
from tests.testkit.certificates import CLUSTER, HOSTS, Certificates

WEB, APP, LARGE = "web.n1.0.0a1b2c3d", "app.n1.0.0a1b2c3d", "large.n1.0.0a1b2c3d"
EVENTS = 1000
SECRET = "what only the server knows"
SERVE = f"""
    import os, sys
    from pathlib import Path
    import pyarrow as pa
    from flumeng.journal.log.limits import Limits
    from flumeng.journal.log.memory import MemoryJournal
    from flumeng.journal.serving.server import JournalServer
    from tests.testkit.journal import numbered_events
    from flumeng.platform.security import credentials

    def journal(name):
        made = MemoryJournal.create(Path(sys.argv[1]), name, limits=Limits(128 << 20))
        made.append(numbered_events(0, {EVENTS}))
        made.sync()
        return made

    journals = {{name: journal(name) for name in ({WEB!r}, {APP!r}, {LARGE!r})}}
    events = numbered_events(0, 4000)
    noise = pa.array([os.urandom(1000) for _ in range(4000)], pa.binary())
    for _ in range(15):
        batch = pa.RecordBatch.from_arrays([noise, *events.columns[1:]], schema=events.schema)
        journals[{LARGE!r}].append(batch)
    journals[{LARGE!r}].sync()

    def fails(journal):
        if journal.id == {APP!r} and os.path.exists(sys.argv[1] + "/fail"):
            raise ValueError({SECRET!r})
        return journal.acked

    server = JournalServer(
        "127.0.0.1",
        journals=lambda: journals,
        acked=fails,
        may_tap=lambda flow: flow == "web",
        granted=lambda name: {{"research": ["web"], "audit": ["*"]}}.get(name, []),
        keystore=credentials.keystore_of("node"),
        actions={{"check-targets": lambda body: [len(body)]}},
    )
    print(server.address, flush=True)
    sys.stdin.read()
    os._exit(0)
"""


@dataclass
class Served:
    """A journal server in a process of the cluster of ``certificates``; ``log`` is its log file."""

    certificates: Certificates
    folder: Path
    address: str
    log: Path

    def proof(self, role: Role, name: str = "n1") -> Proof:
        return proof_of(self.certificates.authority, Identity(CLUSTER, role, name))

    def client(self, proof: Proof | None) -> JournalClient:
        return JournalClient(self.address, 20, prove=lambda: proof)

    def credentials(self, role: Role, name: str = "n1") -> Credentials:
        proof = self.proof(role, name)
        return Credentials(proof.ca, proof.certificate, proof.key.encode())


def proof_of(
    authority: Authority,
    identity: Identity,
    *,
    ca: bytes | None = None,
    days: float = 1,
    days_ago: float = 0,
) -> Proof:
    issued = authority.issue(identity, HOSTS, days=days, now=utc_now() - timedelta(days=days_ago))
    return Proof(ca or authority.pem, issued.certificate, Secret(issued.key.decode()))


@contextlib.contextmanager
def serving(certificates: Certificates, folder: Path, **environment: str) -> Iterator[Served]:
    folder.mkdir()
    log = folder / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVE), str(folder)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address, log.read_text()
    try:
        yield Served(certificates, folder, address, log)
        assert process.poll() is None, f"the server ended by itself: {log.read_text()}"
    finally:
        process.kill()
        process.communicate()


def bodies(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


class Executor:
    """Reads with tokens of ``signer``."""

    def __init__(self, served: Served, signer: Credentials | None = None, **skew: float) -> None:
        self.served = served
        moved = timedelta(**skew)
        found = signer or served.credentials("collector")
        self.signer = Signer(found, lambda: utc_now() + moved)

    def ticketed(self, journal: str = WEB, start: int = 100, end: int = 200) -> str:
        return f"{self.signer.token(journal, start, end)}.{self.signer.certificates}"

    def read(
        self,
        token: str,
        journal: str = WEB,
        start: int = 100,
        end: int = 200,
        role: Role = "executor",
    ) -> int:
        """Retry without a connection, as a task of Spark does."""
        asked = partial(self._read, token, journal, start, end, self.served.proof(role))
        with contextlib.suppress(UnavailableError):
            return asked()
        return asked()

    def _read(self, token: str, journal: str, start: int, end: int, proof: Proof) -> int:
        with self.served.client(proof) as client:
            return bodies(client.read(journal, start, end, token=token))


def altered(token: str, **claims: object) -> str:
    said, signature, certificates = token.split(".")
    changed = json.loads(base64.urlsafe_b64decode(said)) | claims
    text = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode()
    return f"{text}.{signature}.{certificates}"
