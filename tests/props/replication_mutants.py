"""The protocol of replicas with one thing broken: text of a function replaced by another."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from flumeng.journal.replication import follower, membership, primary
from tests.testkit.simulation.replicas import host, world


class Fault(NamedTuple):
    """``place``: a function of the module or, with a dot, of a class in it.

    Each key of ``texts`` occurs once in it and is replaced by its value.
    """

    module: ModuleType
    place: str
    texts: dict[str, str]

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        """Apply the fault until ``patch`` is undone."""
        *classes, name = self.place.split(".")
        owner: Any = getattr(self.module, classes[0]) if classes else self.module
        patch.setattr(owner, name, self._broken(getattr(owner, name), name))

    def _broken(self, function: Any, name: str) -> Callable[..., Any]:
        source: Any = function.fget if isinstance(function, property) else function
        text = textwrap.dedent(inspect.getsource(source))
        for old, new in self.texts.items():
            assert text.count(old) == 1, f"{text.count(old)} times in {self.place}: {old}"
            text = text.replace(old, new)
        made: dict[str, Any] = {}
        exec(f"from __future__ import annotations\n{text}", vars(self.module), made)
        broken: Callable[..., Any] = made[name]
        return broken


OLD_TERM = {"message.term < replica.term": "False"}
ANY_TERM = {**OLD_TERM, "message.term > replica.term": "message.term != replica.term"}
CAN_CUT = "replica, cut = _cut(replica, end)"
IN_SYNC = "if replica not in self.in_sync:"
CAUGHT_UP = "peer.end >= max(primary.checkpoint, primary.first.end)"

FAULTS: dict[str, list[Fault]] = {
    "the primary answers what was sent": [
        Fault(primary, "_advanced", {"peer.replica: peer.end": "peer.replica: peer.sent"})
    ],
    "the primary answers what was sent to some": [Fault(primary, "_advanced", {"min(": "max("})],
    "a replica is left out before ZooKeeper has confirmed it": [
        Fault(
            primary,
            "Primary.counted",
            {
                "(*self.membership.in_sync, *asked, *joining)": "(*(asked or "
                "self.membership.in_sync), *joining)"
            },
        )
    ],
    "a replica tells of what it has written as if it was synced": [
        Fault(
            follower,
            "take",
            {
                "actions.append(Write(start, message.end))": "actions += [Write("
                "start, message.end), Reply(Persisted(replica.term, replica.id, message.end))]"
            },
        )
    ],
    "a replica that joins does not count before ZooKeeper has told": [
        Fault(
            primary,
            "Primary.counted",
            {"(*self.membership.in_sync, *asked, *joining)": "self.membership.in_sync"},
        )
    ],
    "a replica that is asked in does not count": [
        Fault(
            primary,
            "Primary.counted",
            {
                "if self.asked else ()": "if False else ()",
                "if self.joining": "if self.joining and not self.asked",
            },
        )
    ],
    "a replica cuts what it does not know to be everywhere when a term begins": [
        Fault(
            follower,
            "begin",
            {
                "replica = replace(replica, term=message.term, matched=False)": "replica = "
                "replace(replica, term=message.term, matched=False, "
                "log=replica.log.cut(replica.checkpoint))",
                "actions.append(Fence(message.term))": "actions += [Fence(message.term), "
                "Cut(replica.checkpoint)]",
            },
        )
    ],
    "a replica that is not in sync is promoted": [
        Fault(
            membership,
            "Membership.promoted",
            {
                IN_SYNC: "if False:",
                "member == replica\n    )": "member == replica\n    ) + "
                "(() if replica in self.in_sync else (replica,))",
            },
        ),
        Fault(
            world,
            "World._master",
            {"self.membership.in_sync if": "[host.disk.id for host in self.hosts.values()] if"},
        ),
    ],
    "a replica keeps what its primary's log lacks": [
        Fault(follower, "begin", {CAN_CUT: "cut: list[Action] = []"})
    ],
    "a replica joins that has not caught up": [Fault(primary, "_moved", {CAUGHT_UP: "True"})],
    "a replica joins that has caught up with what the primary knows to be everywhere": [
        Fault(primary, "_moved", {CAUGHT_UP: "peer.end >= primary.checkpoint"})
    ],
    "a replica joins that has caught up with what was there before the term": [
        Fault(primary, "_moved", {CAUGHT_UP: "peer.end >= primary.first.end"})
    ],
    "a replica begins with the primary of an old term": [Fault(follower, "begin", ANY_TERM)],
    "a replica takes events of an old term": [Fault(follower, "take", OLD_TERM)],
    "a replica takes events before it has heard what its primary has": [
        Fault(follower, "take", {"message.term > replica.term or not replica.matched": "False"})
    ],
    "a primary hears what was said in other terms": [
        Fault(primary, "received", {"message.term != primary.term or ": ""})
    ],
    "a primary takes what ZooKeeper had before": [
        Fault(primary, "changed", {"version < primary.version or ": ""})
    ],
    "a primary answers with too few in sync": [
        Fault(
            primary, "Primary.takes", {" and len(self.membership.in_sync) >= self.min_in_sync": ""}
        )
    ],
    "a checkpoint does not wait for those that are not known yet": [
        Fault(primary, "_advanced", {"None in ends or ": ""})
    ],
    "a replica lets go what its own checkpoint does not cover": [
        Fault(follower, "take", {"min(message.acked, checkpoint)": "message.acked"})
    ],
    "a promotion begins no term": [Fault(membership, "Membership._led_by", {"term + 1": "term"})],
    "a replica is cut to the checkpoint that it knows": [
        Fault(follower, "begin", {"agreed(replica.log, message.log)": "replica.checkpoint"})
    ],
    "a primary that is started again keeps its term": [
        Fault(
            host,
            "Host.look",
            {
                "self._proposal(Proposal(self.name, version, membership.restarted()))": "self."
                "_become_primary(role, membership, version)"
            },
        )
    ],
    "a new disk passes for the one that was lost": [
        Fault(host, "Host.lose_disk", {'f"{self.name}/{self.disks_lost}"': "self.disk.id"})
    ],
    "a primary that knows that it is over goes on": [
        Fault(primary, "_ended", {"over=True": "over=False"})
    ],
    "a primary takes the membership of its successor for its own": [
        Fault(
            primary,
            "changed",
            {"(membership.term, membership.primary) != (primary.term, primary.id)": "False"},
        )
    ],
    "a replica keeps what lies below its primary's floor, whatever that was": [
        Fault(follower, "begin", {"replica.log.floor < end == floor": "replica.log.end < floor"})
    ],
}
