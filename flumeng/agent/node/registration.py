"""The node's own znodes: registration, liveness, assignment and status. Writes only differences."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from flumeng import __version__
from flumeng.agent.node.claim import Claim, SupplantedError, next_claim, require_own
from flumeng.agent.node.events import Assigned
from flumeng.agent.node.fenced_store import FencedStore
from flumeng.agent.node.journal_registry import JournalRegistry, is_name
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.zookeeper import (
    ABSENT,
    Check,
    Expected,
    Put,
    Remove,
    Store,
    Unreadable,
    Versioned,
)
from flumeng.platform import processes
from flumeng.platform.errors import CorruptError, ForbiddenError, UnavailableError, UserError
from flumeng.platform.security import process
from flumeng.platform.security.credentials import Credentials, keystore_of
from flumeng.platform.security.signing import KEY, is_signed
from zkschema import paths, table
from zkschema.records import Assignment, LiveNode, Node, NodeStatus, Record, Revision
from zkschema.table import ZPath

R = TypeVar("R", bound=Record)

NAME_SHOWN = 200

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionProof:
    """A signature of the session for ``LiveNode``; empty in a cluster without certificates."""

    certificates: str = ""
    signature: str = ""


class SessionProofs:
    def __init__(self) -> None:
        self._keystore = keystore_of("node")
        self._made: tuple[Credentials, int, SessionProof] | None = None

    def of(self, session: int) -> SessionProof:
        """Return the proof for a session. Raises UserError until a usable certificate was read."""
        if self._keystore is None:
            return SessionProof()
        try:
            credentials = process.loaded.of(self._keystore)
        except UserError as error:
            if self._made is None:
                raise
            log.debug("cannot read this node's certificate, which will be read again: %s", error)
            credentials = self._made[0]
        if self._made is None or self._made[:2] != (credentials, session):
            from flumeng.platform.security import sessions  # noqa: PLC0415  needless in an open cluster

            signature = sessions.signature(credentials, session)
            proof = SessionProof(credentials.certificate.decode(), signature)
            self._made = credentials, session, proof
        return self._made[2]


@dataclass(frozen=True)
class Identity:
    """The properties that a node registers. ``uuid``: that of its data directory."""

    name: str
    uuid: str
    roles: tuple[str, ...]
    zone: str
    labels: Mapping[str, str]
    capacity: Mapping[str, float] = field(default_factory=dict)


class Claims(Protocol):
    """Storage of a data directory's claims: see ``DataDirectory``."""

    def claim(self) -> Claim: ...

    def keep_claim(self, claim: Claim) -> None: ...


class HeldError(UnavailableError):
    """Another process, which may have just ended, is registered as live under the node's name."""


class Registration:
    """The node's znodes. With ``signers``, unsigned texts are unreadable. Raises as FencedStore."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        claims: Claims,
        signers: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self.znodes = FencedStore(store)
        self.journals = JournalRegistry(self.znodes, identity.name, clock)
        self._signers = signers
        self._me = identity
        self._incarnation = uuid.uuid4().hex
        self._since = time.time()
        self._texts: dict[tuple[str, int], str] = {}
        self._named: set[tuple[str, int]] = set()
        self._status: Versioned[NodeStatus] | None = None
        self._live: LiveNode | None = None
        self._session = 0
        self._claims = claims
        self._member = process.member("node")
        self._proofs = SessionProofs()
        self._own: Claim | None = None

    def register(self) -> None:
        """Ensure that ``/nodes/N`` exists and has this node's claim. Zone, labels and capacity are
        those of the first start until an operator changes them.

        Raises HeldError while another process of the name is live, CorruptError for an unreadable
        record, UserError when another host has the name; SupplantedError if this process had it, or
        the directory is a copy. Then write nothing: the other's znode can have the same version.
        """
        self._status = self._live = None
        path = paths.node(self._me.name)
        (recorded,) = self.znodes.read_each([path])
        if isinstance(recorded, Unreadable):
            raise CorruptError(str(recorded))
        if recorded is None:
            node = Node(
                uuid=self._me.uuid,
                roles=self._me.roles,
                zone=self._me.zone,
                labels=dict(self._me.labels),
                capacity=dict(self._me.capacity),
            )
            self._write_claim(path, node, ABSENT, Claim())
            self.journals.forget_names()  # a removed node's journals may be removed too
            return
        if recorded.value.uuid != self._me.uuid and self.znodes.fence:
            raise SupplantedError(
                f"the node name {self._me.name} was given to another host while this one was "
                "disconnected. To deliver the events of the journals here, some perhaps again, "
                "start this node with another --name and the same --data"
            )
        if recorded.value.uuid != self._me.uuid:
            raise UserError(
                f"a node named {self._me.name} is registered already, from another data "
                "directory: use that directory or another --name. If the directory is lost for "
                f"good, run `flumeng node decommission {self._me.name} --discard`"
            )
        claimed = Claim(recorded.value.claims, recorded.value.claimant)
        try:
            current = self._own is not None and require_own(self._own, claimed)
            if not current or recorded.value.roles != self._me.roles:
                node = replace(recorded.value, roles=self._me.roles)
                self._write_claim(path, node, recorded.version, claimed)
            else:
                self.znodes.fence = (Check(path, recorded.version),)
        except SupplantedError as error:
            raise SupplantedError(
                f"{error}. The journals here may hold delivered events and lack undelivered ones: "
                f"start node {self._me.name} with the data directory that it used last. If that "
                f"is lost for good, run `flumeng node decommission {self._me.name} --discard`, "
                "and start the node with an empty --data"
            ) from error

    def _write_claim(self, path: ZPath[Node], node: Node, expect: Expected, claimed: Claim) -> None:
        """Write a claim to disk, then ZooKeeper. If the disk fails, the stored one is used."""
        claim = self._own
        if claim is None or claim != claimed:
            self._require_no_other_live()
            claim = next_claim(self._claims.claim(), claimed, self._incarnation)
            try:
                self._claims.keep_claim(claim)
            except OSError:
                claim = self._claims.claim()
        node = replace(node, claims=claim.number, claimant=claim.token)
        self._own = claim  # before the write: its reply may be lost
        self.znodes.fence = (Check(path, self._store.write(path, node, expect)),)

    def _require_no_other_live(self) -> None:
        """Raise HeldError while another process of this name is live, unless ended on this host."""
        (live,) = self._store.read_each([paths.live_node(self._me.name)])
        if not isinstance(live, Versioned) or live.session == self._store.session:
            return
        if live.value.boot and not processes.has_ended(live.value.boot, live.value.pid):
            here = live.value.boot == processes.boot()
            raise HeldError(
                f"node {self._me.name} is live as process {live.value.pid} of "
                f"{'this host' if here else 'another host or container'}"
            )

    def announce(
        self,
        addresses: tuple[str, ...],
        discovery: str = "",
        collector: str = "",
        gateway: str = "",
    ) -> None:
        """Write the ephemeral znode of this session. Raises HeldError if an older one must stay."""
        old, session = self._live, self._store.session
        proof = self._proofs.of(session)
        published = (
            (old.addresses, old.discovery, old.collector, old.gateway, old.signature) if old else ()
        )
        current = (addresses, discovery, collector, gateway, proof.signature)
        if (published, self._session) == (current, session):
            return
        path = paths.live_node(self._me.name)
        live = LiveNode(
            uuid=self._me.uuid,
            incarnation=self._incarnation,
            addresses=addresses,
            discovery=discovery,
            collector=collector,
            gateway=gateway,
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            schema=table.VERSION,
            boot=processes.boot(),
            identity=self._member,
            certificates=proof.certificates,
            signature=proof.signature,
        )
        (recorded,) = self._store.read_each([path])
        ours = recorded is not None and recorded.session == session
        if isinstance(recorded, Versioned) and ours and recorded.value == live:
            pass
        elif recorded is None:
            self.znodes.write(path, live, ABSENT)
        elif ours:
            self.znodes.write(path, live, recorded.version)
        else:
            removed = Remove(path, recorded.version)
            try:
                self.znodes.commit([removed, Put(path, live, ABSENT)])
            except ForbiddenError as error:  # in a secured cluster a node may not remove it
                raise HeldError(
                    f"node {self._me.name} is live in an earlier session, which must end first"
                ) from error
        self._live, self._session = live, session

    def assignment(self) -> Assigned | None:
        """Return the assignment with its texts; None when there is none yet or it is unreadable."""
        path = paths.assignment(self._me.name)
        try:
            assigned = read_assignment(self._store, self._me.name)
        except (CorruptError, UserError) as error:
            self.znodes.problems[str(path)] = f"{error}; the node keeps its previous assignment"
            return None
        self.znodes.problems.pop(str(path), None)
        if assigned is None:
            return None
        tasks = tuple(task for task in assigned.value.tasks if is_name(task.flow))
        if odd := [task.flow for task in assigned.value.tasks if not is_name(task.flow)]:
            self.znodes.problems[str(path)] = f"invalid flow {odd[0]!r}: its tasks are ignored"
        assignment = replace(assigned.value, tasks=tasks)
        unreadable = self._read_texts(assignment)
        return Assigned(assigned.version.number, assignment, dict(self._texts), unreadable)

    def _read_texts(self, assignment: Assignment) -> dict[tuple[str, int], str]:
        """Read the texts of new revisions, which never change. Returns why texts are unreadable."""
        named = {(task.flow, task.revision) for task in assignment.tasks}
        for flow, number in self._named - named:
            self.znodes.problems.pop(str(paths.revision(flow, str(number))), None)
        self._named = named
        self._texts = {key: text for key, text in self._texts.items() if key in named}
        unreadable: dict[tuple[str, int], str] = {}
        missing = sorted(named - self._texts.keys())
        sources = {(flow, number): paths.revision(flow, str(number)) for flow, number in missing}
        for key, revision in zip(sources, self.znodes.read_each([*sources.values()]), strict=True):
            if not isinstance(revision, Versioned):
                unreadable[key] = str(revision or f"{sources[key]}: no such revision")
            elif not self.trusts(key[0], revision.value):
                unreadable[key] = (
                    f"{sources[key]} is not signed with a key of this node's policy file: set "
                    f"{KEY} to the path of such a key, and apply the flow again"
                )
            else:
                self._texts[key] = revision.value.effective
        return unreadable

    def trusts(self, flow: str, revision: Revision) -> bool:
        """Return whether a revision is signed as the policy file requires."""
        return not self._signers or is_signed(
            flow, revision.effective, revision.signature or "", self._signers
        )

    def report(self, status: NodeStatus) -> None:
        status = status.bounded()
        path = paths.status(self._me.name)
        if self._status is None:
            (recorded,) = self._store.read_each([path])
            if not isinstance(recorded, Versioned):
                expect: Expected = recorded.version if recorded else ABSENT
                self._status = Versioned(status, self.znodes.write(path, status, expect))
                return
            self._status = recorded
        if self._status.value != status:
            previous, self._status = self._status, None  # unknown while a write is in flight
            self._status = Versioned(status, self.znodes.write(path, status, previous.version))

    def absent(self, flows: Collection[str]) -> list[str]:
        possible = [flow for flow in flows if is_name(flow)]
        records = self._store.read_each([paths.flow(flow) for flow in possible])
        return [flow for flow, record in zip(possible, records, strict=True) if record is None]

    def reread(self) -> None:
        """Invalidate the cache: after a lost race, a new connection or a long time."""
        self._status = None
        self.journals.reread()
