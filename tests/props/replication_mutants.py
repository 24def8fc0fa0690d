"""The protocol of copies with one thing broken: text of a function replaced by another."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from flumeng.journal.replication import follower, membership, primary
from tests.testkit.simulation.copies import host, world


class Fault(NamedTuple):
    """``place``: a function of the module or, with a dot, of a class in it. Each text of ``texts``
    is in it, once, and becomes the one that stands for it."""

    module: ModuleType
    place: str
    texts: dict[str, str]

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        """Until ``patch`` is undone."""
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


OLD_TERM = {"message.term < copy.term": "False"}
ANY_TERM = {**OLD_TERM, "message.term > copy.term": "message.term != copy.term"}
CAN_CUT = "copy, cut = _cut(copy, end)"
IN_SYNC = "if copy not in self.in_sync:"
CAUGHT_UP = "peer.end >= max(primary.checkpoint, primary.first.end)"

FAULTS: dict[str, list[Fault]] = {
    "the primary answers what was sent": [
        Fault(primary, "_advanced", {"peer.copy: peer.end": "peer.copy: peer.sent"})
    ],
    "the primary answers what was sent to some": [Fault(primary, "_advanced", {"min(": "max("})],
    "a copy is left out before ZooKeeper has confirmed it": [
        Fault(
            primary,
            "Primary.counted",
            {
                "(*self.membership.in_sync, *asked, *joining)": "(*(asked or "
                "self.membership.in_sync), *joining)"
            },
        )
    ],
    "a copy tells of what it has written as if it was synced": [
        Fault(
            follower,
            "take",
            {
                "actions.append(Write(start, message.end))": "actions += [Write("
                "start, message.end), Reply(Persisted(copy.term, copy.id, message.end))]"
            },
        )
    ],
    "a copy that joins does not count before ZooKeeper has told": [
        Fault(
            primary,
            "Primary.counted",
            {"(*self.membership.in_sync, *asked, *joining)": "self.membership.in_sync"},
        )
    ],
    "a copy that is asked in does not count": [
        Fault(
            primary,
            "Primary.counted",
            {
                "if self.asked else ()": "if False else ()",
                "if self.joining": "if self.joining and not self.asked",
            },
        )
    ],
    "a copy cuts what it does not know to be everywhere when a term begins": [
        Fault(
            follower,
            "begin",
            {
                "copy = replace(copy, term=message.term, matched=False)": "copy = replace(copy, "
                "term=message.term, matched=False, log=copy.log.cut(copy.checkpoint))",
                "actions.append(Fence(message.term))": "actions += [Fence(message.term), "
                "Cut(copy.checkpoint)]",
            },
        )
    ],
    "a copy that is not in sync is promoted": [
        Fault(
            membership,
            "Membership.promoted",
            {
                IN_SYNC: "if False:",
                "known == copy)": "known == copy) + (() if copy in self.in_sync else (copy,))",
            },
        ),
        Fault(
            world,
            "World._master",
            {"self.membership.in_sync if": "[host.disk.id for host in self.hosts.values()] if"},
        ),
    ],
    "a copy keeps what its primary's log lacks": [
        Fault(follower, "begin", {CAN_CUT: "cut: list[Action] = []"})
    ],
    "a copy joins that has not caught up": [Fault(primary, "_moved", {CAUGHT_UP: "True"})],
    "a copy joins that has caught up with what the primary knows to be everywhere": [
        Fault(primary, "_moved", {CAUGHT_UP: "peer.end >= primary.checkpoint"})
    ],
    "a copy joins that has caught up with what was there before the term": [
        Fault(primary, "_moved", {CAUGHT_UP: "peer.end >= primary.first.end"})
    ],
    "a copy begins with the primary of an old term": [Fault(follower, "begin", ANY_TERM)],
    "a copy takes events of an old term": [Fault(follower, "take", OLD_TERM)],
    "a copy takes events before it has heard what its primary has": [
        Fault(follower, "take", {"message.term > copy.term or not copy.matched": "False"})
    ],
    "a primary hears what was said in other terms": [
        Fault(primary, "heard", {"message.term != primary.term or ": ""})
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
    "a copy lets go what its own checkpoint does not cover": [
        Fault(follower, "take", {"min(message.acked, known)": "message.acked"})
    ],
    "a promotion begins no term": [Fault(membership, "Membership._led_by", {"term + 1": "term"})],
    "a copy is cut to the checkpoint that it knows": [
        Fault(follower, "begin", {"agreed(copy.log, message.log)": "copy.checkpoint"})
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
    "a copy keeps what lies below its primary's floor, whatever that was": [
        Fault(follower, "begin", {"copy.log.floor < end == floor": "copy.log.end < floor"})
    ],
}
