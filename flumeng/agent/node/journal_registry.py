"""The journal records in ZooKeeper that concern this node. A journal of this node is registered
while a worker has it on disk. Memberships of replicated journals change by compare-and-set at the
version that a worker knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from flumeng.agent.node.events import Acked
from flumeng.agent.node.fenced_store import FencedStore
from flumeng.agent.node.poll_backoff import PollBackoff
from flumeng.agent.node.protocol import Message
from flumeng.control.snapshot import missed_journals
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Put,
    Remove,
    Unreadable,
    Version,
    Versioned,
    Write,
)
from flumeng.events.journal_names import flow_of, is_journal
from flumeng.events.journal_names import node_of as maker_of
from flumeng.journal.replication.membership import Membership, node_of
from flumeng.platform.errors import ConflictError, CorruptError, ForbiddenError, UserError
from zkschema import paths
from zkschema.bootstrap import CURSOR_MAIN
from zkschema.records import NOTHING, Journal
from zkschema.table import NAME

NAME_SHOWN = 200
Records = Mapping[str, Versioned[Journal]]

RECORD_SECONDS = 60.0
ABANDONED_SECONDS = 600.0
"""A replica is unwanted when its journal's record has been hidden from this node for so long."""


@dataclass(frozen=True)
class Scan:
    """The state of replicated journals. ``absent``: those with a local replica and no record.
    ``led``: made by another node, led by this one. ``lost``: led by this node, without a usable
    local replica. ``forgotten``: made by this node, ended by another, and unneeded."""

    message: Message
    absent: Collection[str] = ()
    led: Collection[str] = ()
    lost: Records = field(default_factory=dict)
    forgotten: Records = field(default_factory=dict)


class JournalRegistry:
    """Reads and writes journal records. A journal with an unreadable record is left as it is.
    ``leaderless``: why no node can lead a journal, by path. ``_live``: the first worker's address
    by node, or "", until the node's live znode changes. Raises as ``FencedStore``."""

    def __init__(
        self, znodes: FencedStore, me: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._znodes, self._me, self._clock = znodes, me, clock
        self.led: Collection[str] = ()
        """Journals made by other nodes and led by this one."""
        self.leaderless: dict[str, str] = {}
        self._registered: dict[str, Versioned[Journal]] | None = None
        self._names: set[str] | None = None
        self._aside: set[str] = set()
        self._unneeded: set[str] = set()
        """Journals whose removal from disk was ordered. Nothing takes that back."""
        self._led_elsewhere: set[str] = set()
        self._polls = PollBackoff(clock, RECORD_SECONDS)
        self._known: dict[str, Versioned[Journal] | Unreadable | None] = {}
        self._hidden_since: dict[str, float] = {}
        self._live: dict[str, str] = {}
        self._watched: set[str] = set()
        self._changed: SimpleQueue[str] = SimpleQueue()

    def enter(self, local: Mapping[str, Mapping[str, Any]]) -> None:
        """Register the ingest workers' journals, so that collectors read them. A journal registered
        under another node's name is taken over, since it moved with its disk. While that node is
        live, one of the two disks is a copy: the journal is reported and not registered."""
        registered = self._journals()
        leads = {name for name, journal in local.items() if journal.get("leads")}
        self._led_elsewhere -= leads
        handled = registered.keys() | self._led_elsewhere
        self._take_over([name for name in local if name not in handled])
        for name, reported in local.items():
            if name in self._aside or name in self._led_elsewhere:
                continue
            record = registered.get(name)
            journal = self._record(reported, record.value if record else None)
            if journal is not None and (record is None or record.value != journal):
                self._enter(name, journal, record)

    def _record(self, journal: Mapping[str, Any], recorded: Journal | None) -> Journal | None:
        """Return the record to write, if any. Only the primary changes a replicated journal's."""
        ended = {"closed": journal["closed"], "end": journal["end"]}
        if "replica" in journal and (recorded is not None or journal["closed"]):
            ends = journal["leads"] and journal["closed"]
            return replace(recorded, **ended) if recorded is not None and ends else None
        return Journal(
            flow=journal["flow"],
            node=self._me,
            primary=self._me,
            term=journal["term"] + ("replica" in journal),
            in_sync=(journal.get("replica", self._me),),
            replicas=(self._me,) if "replica" in journal else (),
            lineage=journal.get("lineage", ""),
            **ended,
        )

    def _enter(self, name: str, journal: Journal, record: Versioned[Journal] | None) -> None:
        if not is_name(journal.flow):
            self._set_aside(name, f"invalid flow name {journal.flow[:NAME_SHOWN]!r}")
            return
        expect = record.version if record else ABSENT
        try:
            version = self._znodes.write(paths.journal(name), journal, expect)
        except UserError as error:
            self._set_aside(name, str(error))
            return
        self._know(name, Versioned(journal, version))

    def _know(self, name: str, record: Versioned[Journal]) -> None:
        self._journals()[name] = record
        if self._names is not None and maker_of(name) == self._me:
            self._names.add(name)

    def _set_aside(self, name: str, why: str) -> None:
        self._aside.add(name)
        self._znodes.problems[str(paths.journal(name))] = why

    def _take_over(self, journals: Sequence[str]) -> None:
        for name, record in self._read_journals(journals).items():
            other = record.value.primary
            if record.value.lineage and other != self._me:
                self._led_elsewhere.add(name)
                continue
            if other == self._me or not self._znodes.store.exists(paths.live_node(other)):
                self._know(name, record)
                continue
            self._set_aside(
                name,
                f"the journal is also on node {other}, which is live: one of the two data "
                "directories is a copy and must not be used",
            )

    @property
    def registered(self) -> Mapping[str, Versioned[Journal]]:
        return self._journals()

    def acks(self, journals: Collection[str] | None = None) -> Acked:
        """Return the lowest ack of all readers of these (default: all) journals, and the unneeded
        journals: those closed and fully acked."""
        registered = self._journals()
        names = list(registered if journals is None else registered.keys() & journals)
        cursors = self._cursors({registered[name].value.flow for name in names})
        ack_keys = [
            (name, flow, cursor)
            for name in names
            for flow in [registered[name].value.flow]
            for cursor in cursors[flow]
        ]
        records = self._znodes.read_each(
            [paths.ack(flow, cursor, name) for name, flow, cursor in ack_keys]
        )
        acks: dict[str, int] = {}
        delivered: dict[str, int] = {}
        unknown = set()
        for (name, _, cursor), ack in zip(ack_keys, records, strict=True):
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
        """Return the highest offset of each journal that a reader has acked or decided to read to;
        None where that is unreadable. Raises UnavailableError."""
        names = sorted(name for name in journals if is_name(flow_of(name)))
        flows = {flow_of(name) for name in names}
        cursors = self._cursors(flows)
        ack_keys = [(name, cursor) for name in names for cursor in cursors[flow_of(name)]]
        records = self._znodes.store.read_each(
            [paths.ack(flow_of(n), cursor, n) for n, cursor in ack_keys]
        )
        ends: dict[str, int | None] = dict.fromkeys(names, 0)
        for name, decided in self._decided(flows):
            if name in ends:
                ends[name] = max(ends[name] or 0, decided)
        for (name, _), ack in zip(ack_keys, records, strict=True):
            end = ends[name]
            if isinstance(ack, Unreadable) or end is None:
                ends[name] = None
            elif ack is not None:
                ends[name] = max(end, ack.value.offset, ack.value.emitted)
        return ends

    def _decided(self, flows: Collection[str]) -> Iterator[tuple[str, int]]:
        """Yield the ends of decided batches by journal, where this node may read them."""
        names = sorted(flows)
        try:
            listed = self._znodes.store.children_many([paths.intents(flow) for flow in names])
        except ForbiddenError:  # in a secured cluster
            return
        listed_tasks = zip(names, listed, strict=True)
        intents = [paths.intent(flow, task) for flow, tasks in listed_tasks for task in tasks]
        for intent in self._znodes.store.read_each(intents):
            if isinstance(intent, Versioned):
                for partition, (_, end) in intent.value.ranges.items():
                    yield partition, end

    def delivered(self, journals: Collection[str]) -> Mapping[str, int]:
        """Return the acks of the journals' own flows, where they are readable."""
        registered = self._journals()
        names = sorted(registered.keys() & journals)
        ack_paths = [paths.ack(registered[name].value.flow, CURSOR_MAIN, name) for name in names]
        acks = zip(names, self._znodes.read_each(ack_paths), strict=True)
        return {name: ack.value.offset for name, ack in acks if isinstance(ack, Versioned)}

    def _cursors(self, flows: Collection[str]) -> dict[str, list[str]]:
        names = sorted(flows)
        listed = self._znodes.store.children_many([paths.acks(flow) for flow in names])
        return {
            flow: sorted({CURSOR_MAIN, *cursors})
            for flow, cursors in zip(names, listed, strict=True)
        }

    def clear_up(self, unneeded: Iterable[str], local: Collection[str]) -> None:
        """Deregister journals that were ``unneeded`` once, and are no longer in ``local``: a cursor
        made since then would keep the record of a journal that is gone."""
        self._unneeded.update(unneeded)
        self._unneeded &= self._journals().keys()
        self.deregister(name for name in sorted(self._unneeded) if name not in local)

    def deregister(self, journals: Iterable[str]) -> None:
        """Remove records of removed journals; mark those that only others may remove."""
        registered = self._journals()
        for name in journals:
            record = registered[name]
            marked = replace(record.value, gone=True)
            if record.value.lineage and record.value.node != self._me:
                # The node that made it removes the record, see ``forget``.
                self._znodes.write(paths.journal(name), marked, record.version)
            else:
                ack = paths.ack(record.value.flow, CURSOR_MAIN, name)
                self._znodes.problems.pop(str(ack), None)
                try:
                    self._remove(name, record)
                except ForbiddenError:
                    self._znodes.write(paths.journal(name), marked, record.version)
            del registered[name]

    def forget(self, journals: Mapping[str, Versioned[Journal]]) -> None:
        """Remove the records of this node's journals that another node has ended and removed."""
        for name, record in journals.items():
            try:
                self._remove(name, record)
            except ForbiddenError:  # the masters remove it, once no node needs its end
                self._znodes.write(
                    paths.journal(name), replace(record.value, lineage=""), record.version
                )

    def _remove(self, name: str, record: Versioned[Journal]) -> None:
        """Remove a record and its flow's ack. Raises ForbiddenError in a secured cluster."""
        ack = paths.ack(record.value.flow, CURSOR_MAIN, name)
        acked: list[Write] = [Remove(ack, ANY)] if self._znodes.store.exists(ack) else []
        missed = missed_journals.counted(self._znodes.store, name, record)
        counted = [missed] if missed else []
        self._znodes.commit([Remove(paths.journal(name), record.version), *acked, *counted])

    def _journals(self) -> dict[str, Versioned[Journal]]:
        """Return this node's records. They are listed once, then followed, since only this node
        registers journals of its name. So the number of reads does not grow with other nodes."""
        if self._registered is None:
            if self._names is None:
                listed = self._znodes.store.children(paths.journals())
                self._names = {n for n in listed if is_journal(n) and maker_of(n) == self._me}
            names = sorted({*self._names, *self.led})
            for name in self._aside.difference(names):
                self._znodes.problems.pop(str(paths.journal(name)), None)
            self._aside.clear()
            records = self._read_journals(names)
            self._names.intersection_update({*records, *self._aside})
            self._registered = {
                name: record
                for name, record in records.items()
                if record.value.primary == self._me and not record.value.gone
            }
        return self._registered

    def _read_journals(self, names: Sequence[str]) -> dict[str, Versioned[Journal]]:
        records = self._znodes.read_each([paths.journal(name) for name in names])
        readable = {}
        for name, record in zip(names, records, strict=True):
            self._aside.discard(name)
            if isinstance(record, Unreadable):
                self._aside.add(name)
            elif record is not None and not is_name(record.value.flow):
                self._set_aside(name, f"invalid flow name {record.value.flow[:NAME_SHOWN]!r}")
            elif record is not None:
                readable[name] = record
        return readable

    def reread(self) -> None:
        """Invalidate the cache: after a lost race, a new connection or a long time."""
        self._registered = None
        self._led_elsewhere.clear()

    def forget_names(self) -> None:
        """Read all again: a record of an earlier tree would count as seen in this one."""
        self._names, self._known = None, {}
        self.reread()

    # Replicated journals.

    def find(
        self,
        journals: Iterable[str],
        replicas: Iterable[str],
        ids: Mapping[str, str],
        assigned: Mapping[str, int] = NOTHING,
    ) -> Scan:
        """Return the state of these journals and replicas. ``ids``: of usable replicas. A record is
        reread when ``assigned`` has another version, otherwise less and less often. Raises
        UnavailableError."""
        stored = set(replicas)
        records = self._read_records(sorted({*journals, *stored}), assigned)
        abandoned = self._abandoned(records, assigned)
        replicated = {
            name: record
            for name, record in records.items()
            if isinstance(record, Versioned) and record.value.lineage
        }
        self.leaderless.clear()
        memberships: dict[str, Any] = {}
        for name, record in replicated.items():
            try:
                membership = Membership.of(record.value)
            except CorruptError:
                continue  # reported by the check of records; workers keep the old one
            which = {"version": record.version.number, "created": record.created}
            memberships[name] = {**which, **membership.as_message()}
        live = {name: record for name, record in replicated.items() if not record.value.gone}
        superseded = {
            name: record
            for name, record in replicated.items()
            if record.value.node == self._me != record.value.primary
        }
        nodes = {node for membership in memberships.values() for node in membership["nodes"]}
        message = {
            "type": "replicas",
            "journals": memberships,
            "addresses": self._addresses(nodes - {self._me}),
            "ended": {
                name: {"end": record.value.end, "gone": record.value.gone}
                for name, record in superseded.items()
                if record.value.closed and record.value.end is not None
            },
            "unwanted": sorted(
                name for name in stored if name in abandoned or self._unwanted(records[name])
            ),
        }
        return Scan(
            message,
            absent=sorted(name for name in stored if records[name] is None),
            led=[n for n, row in live.items() if row.value.primary == self._me != row.value.node],
            lost={
                name: live[name]
                for name, membership in memberships.items()
                if name in live
                and node_of(membership["primary"]) == self._me
                and ids.get(name) != membership["primary"]
            },
            forgotten={name: record for name, record in superseded.items() if record.value.gone},
        )

    def hand_over(self, name: str, record: Versioned[Journal], own: str) -> bool:
        """Make another in-sync replica the primary of a journal whose local replica is unusable, or
        ``own``, the usable local one, if an operator chose this node. Returns False when no other
        one is live. Raises ConflictError, UnavailableError."""
        path, membership = paths.journal(name), Membership.of(record.value)
        self._polls.soon([name])
        if membership.primary == f"{self._me}/" and own:
            after = replace(membership, primary=own, in_sync=(own,))
        else:
            nodes = {node_of(replica): replica for replica in membership.in_sync}
            live = self._addresses(set(nodes) - {self._me})
            if not live:
                self.leaderless[str(path)] = (
                    f"the replica of journal {name} on this node is damaged or lost, and no other "
                    "in-sync replica is live: start one of their nodes, or accept a loss of "
                    f"events with `flumeng journal promote {name} --to NODE --unclean`"
                )
                return False
            after = membership.promoted(nodes[min(live)])
        self._znodes.store.commit([Put(path, after.put_into(record.value), record.version)])
        return True

    def change(self, proposal: Message) -> None:
        """Write a proposed membership. Raises ConflictError when the record has changed,
        UnavailableError when the outcome is unknown."""
        path = paths.journal(str(proposal["journal"]))
        self._polls.soon([path.name])
        (record,) = self._znodes.store.read_each([path])
        if not isinstance(record, Versioned):
            fault = f"unreadable record: {record}; see `flumeng schema verify`"
            raise ConflictError(fault if record else f"{path} is gone: the journal was removed")
        if record.version != Version(int(proposal["version"])):
            raise ConflictError(f"the record {path} has changed meanwhile")
        changed = Membership.from_message(proposal).put_into(record.value)
        self._znodes.store.commit([Put(path, changed, record.version)])

    def _abandoned(
        self,
        records: Mapping[str, Versioned[Journal] | Unreadable | None],
        assigned: Mapping[str, int],
    ) -> set[str]:
        """Return the journals whose records have been hidden for ``ABANDONED_SECONDS``."""
        now = self._clock()
        self._hidden_since = {
            name: self._hidden_since.get(name, now)
            for name, record in records.items()
            if isinstance(record, Unreadable) and record.hidden and name not in assigned
        }
        return {n for n, since in self._hidden_since.items() if now - since >= ABANDONED_SECONDS}

    def _unwanted(self, record: Versioned[Journal] | Unreadable | None) -> bool:
        if not isinstance(record, Versioned):
            return False
        return record.value.gone or self._me not in record.value.replicas

    def _read_records(
        self, names: list[str], assigned: Mapping[str, int]
    ) -> dict[str, Versioned[Journal] | Unreadable | None]:
        records = {name: self._known.get(name) for name in names}
        read = {n: record for n, record in records.items() if isinstance(record, Versioned)}
        versions = {name: record.version.number for name, record in read.items()}
        self._polls.soon(
            name
            for name in names
            if name not in versions or assigned.get(name, versions[name]) != versions[name]
        )
        due = self._polls.due(names)
        reread = self._znodes.store.read_each([paths.journal(name) for name in due])
        for name, record in zip(due, reread, strict=True):
            self._polls.seen(name, record.version if isinstance(record, Versioned) else None)
            records[name] = record
        self._known = records
        return records

    def _addresses(self, nodes: set[str]) -> dict[str, str]:
        """Return the addresses of first workers, which hold replicas; cached until they change."""
        for name in sorted(nodes - self._watched):
            self._znodes.store.watch(paths.live_node(name), partial(self._on_change, name))
            self._watched.add(name)
        while not self._changed.empty():
            self._live.pop(self._changed.get(), None)
        unknown = sorted(nodes - self._live.keys())
        live_nodes = self._znodes.store.read_each([paths.live_node(name) for name in unknown])
        for name, live in zip(unknown, live_nodes, strict=True):
            addresses = live.value.addresses if isinstance(live, Versioned) else ()
            self._live[name] = addresses[0] if addresses else ""
        return {name: self._live[name] for name in sorted(nodes) if self._live[name]}

    def _on_change(self, node: str, _: str) -> None:
        self._changed.put(node)


def is_name(flow: str) -> bool:
    return NAME.fullmatch(flow) is not None
