"""The node's own znodes, kept in line with what the machine says. Level-triggered: ``publish``
compares and writes only differences, so that a lost connection costs nothing but a repetition."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from flumeng import __version__
from flumeng.agent.node.claim import Claim, SupplantedError, next_claim, require_own
from flumeng.agent.node.events import Acked, Wanted
from flumeng.agent.node.session_proof import SessionProofs
from flumeng.control.snapshot.assignment_pages import read_assignment
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Expected,
    Found,
    Path,
    Put,
    Remove,
    Store,
    Unreadable,
    Version,
    Versioned,
    Write,
)
from flumeng.events.journal_names import flow_of, is_journal, node_of
from flumeng.platform import processes
from flumeng.platform.errors import CorruptError, ForbiddenError, UnavailableError, UserError
from flumeng.platform.security import process
from flumeng.platform.security.signing import KEY, is_signed
from zkschema import paths, table
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import Assignment, Journal, LiveNode, Node, NodeStatus, Record, Revision
from zkschema.table import NAME, ZPath

R = TypeVar("R", bound=Record)

NAME_SHOWN = 200


@dataclass(frozen=True)
class Identity:
    """Who the node is; ``uuid`` is that of its data directory."""

    name: str
    uuid: str
    roles: tuple[str, ...]
    zone: str
    labels: Mapping[str, str]
    capacity: Mapping[str, float] = field(default_factory=dict)


class Claims(Protocol):
    """Where the claims of a data directory are kept: see ``Home``."""

    def claim(self) -> Claim: ...

    def keep_claim(self, claim: Claim) -> None: ...


class HeldError(UnavailableError):
    """Another process is live under the node's name; it may be one that has ended just now."""


class Registration:
    """Calls raise UnavailableError while ZooKeeper is away and ConflictError on a lost race.

    ``problems`` are the records that the node cannot read, path -> why. Each is set aside: what it
    describes stays as it was.
    """

    def __init__(
        self, store: Store, identity: Identity, claims: Claims, signers: Sequence[str] = ()
    ) -> None:
        """With ``signers``, texts without a signature of one of them count as unreadable."""
        self._store = store
        self._signers = signers
        self._me = identity
        self._incarnation = uuid.uuid4().hex
        self._since = time.time()
        self.problems: dict[str, str] = {}
        self._texts: dict[tuple[str, int], str] = {}
        self._named: set[tuple[str, int]] = set()
        self._registered: dict[str, Versioned[Journal]] | None = None
        self._names: set[str] | None = None
        self._status: Versioned[NodeStatus] | None = None
        self._live: LiveNode | None = None
        self._session = 0
        self._aside: set[str] = set()
        self._led_elsewhere: set[str] = set()
        self.led: Collection[str] = ()
        """The journals that other nodes made and this one leads now."""
        self._claims = claims
        self._member = process.member("node")
        self._proofs = SessionProofs()
        self._own: Claim | None = None
        self._fence: tuple[Check, ...] = ()
        self.on_progress: Callable[[], None] = lambda: None
        """Called after each write: one turn of the node may make very many."""

    def register(self) -> None:
        """Make sure that ``/nodes/N`` is there and is ours; what we said of us is compared anew.

        Zone, labels and capacity are what the node was first started with until an operator changes
        them. Raises UserError when a host with another identity has the name (SupplantedError when
        this process had it before), CorruptError when the record cannot be read. Nothing may be
        written after that: the znode of another host can have the version that ours had.
        """
        self._status = self._live = None
        path = paths.node(self._me.name)
        found = self._read(path)
        if isinstance(found, Unreadable):
            raise CorruptError(str(found))
        if found is None:
            node = Node(
                uuid=self._me.uuid,
                roles=self._me.roles,
                zone=self._me.zone,
                labels=dict(self._me.labels),
                capacity=dict(self._me.capacity),
            )
            self._write_claim(path, node, ABSENT, Claim())
            self.forget_names()  # its journals may have gone with it
            return
        if found.value.uuid != self._me.uuid and self._fence:
            raise SupplantedError(
                f"the name {self._me.name} was given to another host while this one was away. What "
                "its journals hold, perhaps delivered already, is delivered when it is started "
                "with another --name and this --data"
            )
        if found.value.uuid != self._me.uuid:
            raise UserError(
                f"a node named {self._me.name} is registered already, from another data directory: "
                "choose another --name, or give this node the data directory it had, or, when that "
                f"is gone for good: `flumeng node decommission {self._me.name} --discard`"
            )
        known = Claim(found.value.claims, found.value.claimant)
        try:
            current = self._own is not None and require_own(self._own, known)
            if not current or found.value.roles != self._me.roles:
                node = replace(found.value, roles=self._me.roles)
                self._write_claim(path, node, found.version, known)
            else:
                self._fence = (Check(path, found.version),)
        except SupplantedError as error:
            raise SupplantedError(
                f"{error}. Its journals may hold what was delivered, and lack what was not: start "
                f"node {self._me.name} with the directory that it used last, or, when that is lost "
                f"for good: `flumeng node decommission {self._me.name} --discard`, and start it "
                "with an empty --data"
            ) from error

    def _write_claim(self, path: ZPath[Node], node: Node, expect: Expected, known: Claim) -> None:
        """First on the disk, then in ZooKeeper. On a full disk the last claim goes on."""
        claim = self._own
        if claim is None or claim != known:
            self._require_no_other_live()
            claim = next_claim(self._claims.claim(), known, self._incarnation)
            try:
                self._claims.keep_claim(claim)
            except OSError:
                claim = self._claims.claim()
        node = replace(node, claims=claim.number, claimant=claim.token)
        self._own = claim  # before the write: its reply may be lost
        self._fence = (Check(path, self._store.write(path, node, expect)),)

    def _require_no_other_live(self) -> None:
        """One that was left by an earlier process of this host goes with its session, and that
        process may have ended: nobody needs to wait for it. Raises UnavailableError."""
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
        self, addresses: tuple[str, ...], discovery: str = "", collector: str = ""
    ) -> None:
        """Keep the ephemeral znode of this session; one left by our last session is replaced."""
        known, session = self._live, self._store.session
        proof = self._proofs.of(session)
        told = (known.addresses, known.discovery, known.collector, known.signature) if known else ()
        said = (addresses, discovery, collector, proof.signature)
        if (told, self._session) == (said, session):
            return
        path = paths.live_node(self._me.name)
        live = LiveNode(
            uuid=self._me.uuid,
            incarnation=self._incarnation,
            addresses=addresses,
            discovery=discovery,
            collector=collector,
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            schema=table.VERSION,
            boot=processes.boot(),
            identity=self._member,
            certificates=proof.certificates,
            signature=proof.signature,
        )
        (found,) = self._store.read_each([path])
        ours = found is not None and found.session == session
        if isinstance(found, Versioned) and ours and found.value == live:
            pass
        elif found is None:
            self._write(path, live, ABSENT)
        elif ours:
            self._write(path, live, found.version)
        else:
            removed = Remove(path, found.version)
            try:
                self._store.commit([*self._fence, removed, Put(path, live, ABSENT)])
            except ForbiddenError as error:  # in a secured cluster a node may not remove it
                raise HeldError(
                    f"node {self._me.name} was live in another session, which has to end first"
                ) from error
        self._live, self._session = live, session

    def assignment(self) -> Wanted | None:
        """What to run now, with the texts; None before a master has said anything, and when what it
        said cannot be read."""
        path = paths.assignment(self._me.name)
        try:
            found = read_assignment(self._store, self._me.name)
        except (CorruptError, UserError) as error:
            self.problems[str(path)] = f"{error}; the node goes on with what it had before"
            return None
        self.problems.pop(str(path), None)
        if found is None:
            return None
        tasks = tuple(task for task in found.value.tasks if _is_name(task.flow))
        if odd := [task.flow for task in found.value.tasks if not _is_name(task.flow)]:
            self.problems[str(path)] = f"no flow can be called {odd[0]!r}: its tasks are left out"
        assignment = replace(found.value, tasks=tasks)
        unreadable = self._read_texts(assignment)
        return Wanted(found.version.number, assignment, dict(self._texts), unreadable)

    def _read_texts(self, assignment: Assignment) -> dict[tuple[str, int], str]:
        """Read what is not known yet of the revisions that are named: they never change. Gives why
        for each that cannot be read."""
        named = {(task.flow, task.revision) for task in assignment.tasks}
        for flow, number in self._named - named:
            self.problems.pop(str(paths.revision(flow, str(number))), None)
        self._named = named
        self._texts = {key: text for key, text in self._texts.items() if key in named}
        unreadable: dict[tuple[str, int], str] = {}
        missing = sorted(named - self._texts.keys())
        wanted = {(flow, number): paths.revision(flow, str(number)) for flow, number in missing}
        for key, revision in zip(wanted, self._read_each([*wanted.values()]), strict=True):
            if not isinstance(revision, Versioned):
                unreadable[key] = str(revision or f"{wanted[key]}: there is no such revision")
            elif not self.trusts(key[0], revision.value):
                unreadable[key] = (
                    f"{wanted[key]} is not signed with a key of this node's policy file: apply the "
                    f"flow with the file of such a key in {KEY}"
                )
            else:
                self._texts[key] = revision.value.effective
        return unreadable

    def trusts(self, flow: str, revision: Revision) -> bool:
        """Whether it is signed as the policy file of this node wants it."""
        return not self._signers or is_signed(
            flow, revision.effective, revision.signature or "", self._signers
        )

    def report(self, status: NodeStatus) -> None:
        """Write the status when it is another than the one that is there."""
        status = status.bounded()
        path = paths.status(self._me.name)
        if self._status is None:
            (found,) = self._store.read_each([path])
            if not isinstance(found, Versioned):
                expect: Expected = found.version if found else ABSENT
                self._status = Versioned(status, self._write(path, status, expect))
                return
            self._status = found
        if self._status.value != status:
            known, self._status = self._status, None  # not known while a write may be on its way
            self._status = Versioned(status, self._write(path, status, known.version))

    def enter_journals(self, local: Mapping[str, Mapping[str, Any]]) -> None:
        """Register what the ingest worker has on disk: from then on it is collected.

        What another node has registered goes with the disk: the host was called otherwise then.
        While that node is live, one of them works on a copy, and the journal is set aside.
        """
        registered = self._journals()
        leads = {name for name, said in local.items() if said.get("leads")}
        self._led_elsewhere -= leads
        known_ones = registered.keys() | self._led_elsewhere
        self._take_over([name for name in local if name not in known_ones])
        for name, said in local.items():
            if name in self._aside or name in self._led_elsewhere:
                continue
            known = registered.get(name)
            journal = self._record(said, known.value if known else None)
            if journal is not None and (known is None or known.value != journal):
                self._enter(name, journal, known)

    def _record(self, said: Mapping[str, Any], known: Journal | None) -> Journal | None:
        """Of one that is replicated the primary alone says more than that it is there."""
        ended = {"closed": said["closed"], "end": said["end"]}
        if "copy" in said and (known is not None or said["closed"]):
            ends = said["leads"] and said["closed"]
            return replace(known, **ended) if known is not None and ends else None
        return Journal(
            flow=said["flow"],
            node=self._me.name,
            primary=self._me.name,
            term=said["term"] + ("copy" in said),
            in_sync=(said.get("copy", self._me.name),),
            copies=(self._me.name,) if "copy" in said else (),
            lineage=said.get("lineage", ""),
            **ended,
        )

    def _enter(self, name: str, journal: Journal, known: Versioned[Journal] | None) -> None:
        if not _is_name(journal.flow):
            self._set_aside(name, f"no flow can be called {journal.flow[:NAME_SHOWN]!r}")
            return
        expect = known.version if known else ABSENT
        try:
            version = self._write(paths.journal(name), journal, expect)
        except UserError as error:
            self._set_aside(name, str(error))
            return
        self._know(name, Versioned(journal, version))

    def _know(self, name: str, known: Versioned[Journal]) -> None:
        self._journals()[name] = known
        if self._names is not None and node_of(name) == self._me.name:
            self._names.add(name)

    def _set_aside(self, name: str, why: str) -> None:
        self._aside.add(name)
        self.problems[str(paths.journal(name))] = why

    def _take_over(self, journals: Sequence[str]) -> None:
        for name, known in self._read_journals(journals).items():
            other = known.value.primary
            if known.value.lineage and other != self._me.name:
                self._led_elsewhere.add(name)
                continue
            if other == self._me.name or not self._store.exists(paths.live_node(other)):
                self._know(name, known)
                continue
            self._set_aside(
                name,
                f"it is also on node {other}, which is live: one of the two data directories is a "
                "copy, and may not be used",
            )

    @property
    def registered(self) -> Mapping[str, Versioned[Journal]]:
        """The journals of this node that are registered, as they are known."""
        return self._journals()

    def acks(self, journals: Collection[str] | None = None) -> Acked:
        """Up to where these of the node's journals are acked by all who read them (all of them when
        none are named), and which are closed and acked to their end: nobody needs them any more."""
        registered = self._journals()
        names = list(registered if journals is None else registered.keys() & journals)
        cursors = self._cursors({registered[name].value.flow for name in names})
        places = [
            (name, flow, cursor)
            for name in names
            for flow in [registered[name].value.flow]
            for cursor in cursors[flow]
        ]
        found = self._read_each([paths.ack(flow, cursor, name) for name, flow, cursor in places])
        acks: dict[str, int] = {}
        delivered: dict[str, int] = {}
        unknown = set()
        for (name, _, cursor), ack in zip(places, found, strict=True):
            if isinstance(ack, Unreadable):
                unknown.add(name)
            offset = ack.value.offset if isinstance(ack, Versioned) else 0
            acks[name] = min(offset, acks.get(name, offset))
            if cursor == CURSOR_MAIN:
                delivered[name] = offset
        unneeded = (
            name
            for name in names
            if name not in unknown
            and registered[name].value.closed
            and acks[name] >= (registered[name].value.end or 0)
        )
        return Acked(
            {name: ack for name, ack in acks.items() if ack},
            tuple(unneeded),
            delivered={name: own for name, own in delivered.items() if own > acks[name]},
        )

    def seen(self, journals: Collection[str]) -> dict[str, int | None]:
        """Of each journal the highest offset that any reader has acked, or has decided to read to;
        None where that cannot be read. Raises UnavailableError."""
        names = sorted(name for name in journals if _is_name(flow_of(name)))
        flows = {flow_of(name) for name in names}
        cursors = self._cursors(flows)
        places = [(name, cursor) for name in names for cursor in cursors[flow_of(name)]]
        found = self._store.read_each([paths.ack(flow_of(n), cursor, n) for n, cursor in places])
        ends: dict[str, int | None] = dict.fromkeys(names, 0)
        for name, decided in self._decided(flows):
            if name in ends:
                ends[name] = max(ends[name] or 0, decided)
        for (name, _), ack in zip(places, found, strict=True):
            known = ends[name]
            if isinstance(ack, Unreadable) or known is None:
                ends[name] = None
            elif ack is not None:
                ends[name] = max(known, ack.value.offset, ack.value.emitted)
        return ends

    def _decided(self, flows: Collection[str]) -> Iterator[tuple[str, int]]:
        """The ends of the batches that are decided, where this node may read them."""
        names = sorted(flows)
        try:
            listed = self._store.children_many([paths.intents(flow) for flow in names])
        except ForbiddenError:  # in a secured cluster
            return
        tasks = zip(names, listed, strict=True)
        wanted = [paths.intent(flow, task) for flow, found in tasks for task in found]
        for intent in self._store.read_each(wanted):
            if isinstance(intent, Versioned):
                for partition, (_, end) in intent.value.ranges.items():
                    yield partition, end

    def delivered(self, journals: Collection[str]) -> Mapping[str, int]:
        """Up to where these of the node's journals are acked by their flows' own cursors, where
        that is known."""
        registered = self._journals()
        names = sorted(registered.keys() & journals)
        places = [paths.ack(registered[name].value.flow, CURSOR_MAIN, name) for name in names]
        found = zip(names, self._read_each(places), strict=True)
        return {name: ack.value.offset for name, ack in found if isinstance(ack, Versioned)}

    def _cursors(self, flows: Collection[str]) -> dict[str, list[str]]:
        """The flow's own, and those of the flows that read it."""
        names = sorted(flows)
        listed = self._store.children_many([paths.acks(flow) for flow in names])
        return {
            flow: sorted({CURSOR_MAIN, *cursors})
            for flow, cursors in zip(names, listed, strict=True)
        }

    def absent(self, flows: Collection[str]) -> list[str]:
        """Those of the flows that are not in the tree, and could be."""
        possible = [flow for flow in flows if _is_name(flow)]
        found = self._store.read_each([paths.flow(flow) for flow in possible])
        return [flow for flow, record in zip(possible, found, strict=True) if record is None]

    def deregister(self, journals: Iterable[str]) -> None:
        """Remove the registration of journals that nobody needs and that are gone from disk. In a
        secured cluster these are the masters' to remove, and the node marks them."""
        registered = self._journals()
        for name in journals:
            known = registered[name]
            if known.value.lineage and known.value.node != self._me.name:
                marked = replace(
                    known.value, gone=True
                )  # for the node that made it, see ``forget``
                self._write(paths.journal(name), marked, known.version)
                del registered[name]
                continue
            writes: list[Write] = [*self._fence, Remove(paths.journal(name), known.version)]
            ack = paths.ack(known.value.flow, CURSOR_MAIN, name)
            self.problems.pop(str(ack), None)
            acked: list[Write] = [Remove(ack, ANY)] if self._store.exists(ack) else []
            try:
                self._store.commit([*writes, *acked])
            except ForbiddenError:
                marked = replace(known.value, gone=True)
                self._write(paths.journal(name), marked, known.version)
            del registered[name]

    def forget(self, journals: Mapping[str, Versioned[Journal]]) -> None:
        """Remove the registration of journals of ours that another node has ended and that are
        gone from there; of what it lacked nothing is left here."""
        for name, known in journals.items():
            ack = paths.ack(known.value.flow, CURSOR_MAIN, name)
            acked: list[Write] = [Remove(ack, ANY)] if self._store.exists(ack) else []
            removed = Remove(paths.journal(name), known.version)
            try:
                self._store.commit([*self._fence, removed, *acked])
            except ForbiddenError:  # the masters do, once no node is to learn where it ended
                self._write(paths.journal(name), replace(known.value, lineage=""), known.version)

    def look_anew(self) -> None:
        """After a lost race, a new connection or a long time: forget what was read."""
        self._status = None
        self._registered = None
        self._led_elsewhere.clear()

    def forget_names(self) -> None:
        """The tree is another one: list the journals of this node there."""
        self._names = None
        self.look_anew()

    def _journals(self) -> dict[str, Versioned[Journal]]:
        """The registered journals of this node, read once and then followed.

        Only this node registers journals of its name. So it lists those of the cluster once a
        process and tree, and reads its own by name afterwards: its reads do not grow with others.
        """
        if self._registered is None:
            if self._names is None:
                listed = self._store.children(paths.journals())
                self._names = {n for n in listed if is_journal(n) and node_of(n) == self._me.name}
            names = sorted({*self._names, *self.led})
            for name in self._aside.difference(names):
                self.problems.pop(str(paths.journal(name)), None)
            self._aside.clear()
            found = self._read_journals(names)
            self._names.intersection_update({*found, *self._aside})
            self._registered = {
                name: known
                for name, known in found.items()
                if known.value.primary == self._me.name and not known.value.gone
            }
        return self._registered

    def _read_journals(self, names: Sequence[str]) -> dict[str, Versioned[Journal]]:
        """The registrations that are there, but for those that are to be set aside."""
        found = self._read_each([paths.journal(name) for name in names])
        readable = {}
        for name, known in zip(names, found, strict=True):
            self._aside.discard(name)
            if isinstance(known, Unreadable):
                self._aside.add(name)
            elif known is not None and not _is_name(known.value.flow):
                self._set_aside(name, f"no flow can be called {known.value.flow[:NAME_SHOWN]!r}")
            elif known is not None:
                readable[name] = known
        return readable

    def _write(self, path: Path, value: Record, expect: Expected) -> Version:
        """One Put, as long as nothing has changed in ``/nodes/N``: whoever else has the name now
        has changed that."""
        version = self._store.commit([*self._fence, Put(path, value, expect)])[0]
        self.on_progress()
        return version

    def _read(self, path: ZPath[R]) -> Found[R]:
        return self._read_each([path])[0]

    def _read_each(self, wanted: Sequence[ZPath[R]]) -> list[Found[R]]:
        """What cannot be read is a problem until it can."""
        found = self._store.read_each(wanted)
        for path, record in zip(wanted, found, strict=True):
            if isinstance(record, Unreadable):
                self.problems[str(path)] = record.why
            else:
                self.problems.pop(str(path), None)
        return found


def _is_name(flow: str) -> bool:
    return NAME.fullmatch(flow) is not None
