"""The node's data directory: one process at a time, an identity, the last assignment."""

from __future__ import annotations

import fcntl
import json
import logging
import uuid
from pathlib import Path

from flumeng.errors import UserError
from flumeng.node.events import Wanted
from flumeng.runtime.whole_files import write_durably
from zkschema import codec
from zkschema.records import Assignment

log = logging.getLogger(__name__)


class Home:
    """Raises UserError when ``path`` cannot be written or another node runs in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (path / "lock").open("a")
        except OSError as error:
            raise UserError(
                f"cannot write to the data directory {path}: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another node runs in {path}: give each its own --data") from error

    def identity(self) -> str:
        """The node's UUID, made at the first start and kept for ever."""
        file = self.path / "uuid"
        if not file.exists():
            write_durably(file, uuid.uuid4().hex)
        return file.read_text()

    def belong_to(self, cluster: str) -> None:
        """Keep to the cluster that the node first came to: another one does not know what the
        journals hold. Raises UserError when this is another one."""
        file = self.path / "cluster"
        try:
            if not file.exists():
                write_durably(file, cluster)
            other = file.read_text() != cluster
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror}") from error
        if other:
            raise UserError(
                f"ZooKeeper holds another cluster than the one that {self.path} belongs to, and "
                "would have its journals removed: bring that one back (`flumeng schema import`), "
                "take another --data, or, when it is lost for good, apply its flows here and "
                f"remove {file}"
            )

    def keep(self, wanted: Wanted) -> None:
        """Remember the assignment, for a start while ZooKeeper is away."""
        document = {
            "version": wanted.version,
            "assignment": codec.text_of(wanted.assignment),
            "texts": [[flow, number, text] for (flow, number), text in wanted.texts.items()],
        }
        write_durably(self.path / "assignment.json", json.dumps(document))

    def kept(self) -> Wanted | None:
        """What ``keep`` wrote last; None when it is damaged, since ZooKeeper tells it again."""
        file = self.path / "assignment.json"
        if not file.exists():
            return None
        try:
            document = json.loads(file.read_text())
            return Wanted(
                document["version"],
                codec.decode(Assignment, document["assignment"].encode()),
                {(flow, number): text for flow, number, text in document["texts"]},
            )
        except (ValueError, LookupError, TypeError) as error:
            log.warning("%s is not used: %s", file, error)
            return None
