"""What a node does about journals that have copies: its workers learn who leads which, what they
want of ZooKeeper is asked for, and what nobody needs any more goes.

A copy goes when its record says so, or is gone. An import may bring back a tree that never had the
record: then the copy stays, since it may be the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from flumeng.agent.node.current_texts import CurrentTexts
from flumeng.agent.node.home import Home
from flumeng.agent.node.known_names import KnownNames
from flumeng.agent.node.machine import Machine
from flumeng.agent.node.memberships import Found, Memberships
from flumeng.agent.node.protocol import Message
from flumeng.agent.node.registration import Registration
from flumeng.platform.errors import ConflictError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often it is looked where other copies are, while there are any."""
NAMED = 5


class ReplicatedJournals:
    """``remember`` keeps on disk which of the copies' records were seen in the tree as it is now,
    of these that are there, and of those of which something lies here. ``is_same_tree`` looks
    whether that tree is the one that is there. Raises UserError where it is another cluster's."""

    def __init__(
        self,
        home: Home,
        machine: Machine,
        znodes: Registration,
        memberships: Memberships,
        texts: CurrentTexts,
        *,
        me: str,
        remember: Callable[[Collection[str], Collection[str]], KnownNames],
        is_same_tree: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._me, self._home = me, home
        self._machine, self._znodes = machine, znodes
        self._memberships, self._texts = memberships, texts
        self._remember, self._is_same_tree, self._clock = remember, is_same_tree, clock
        self._at = 0.0
        self._unknown: Collection[str] = ()

    @property
    def due(self) -> bool:
        return self._clock() >= self._at

    def look_soon(self) -> None:
        self._at = 0.0

    @property
    def problems(self) -> dict[str, str]:
        if not self._unknown:
            return self._memberships.problems
        names = ", ".join(sorted(self._unknown)[:NAMED])
        why = (
            f"copies of {len(self._unknown)} journals are kept ({names}), since ZooKeeper has no "
            "record of them and nothing says that they were collected: `flumeng journal promote "
            f"JOURNAL --to {self._me} --unclean` has one collected from here; what nobody needs, "
            f"remove from {self._home.path / 'copies'} while the node is stopped"
        )
        return {**self._memberships.problems, "copies without a record": why}

    def ask_for_changes(self) -> None:
        """What the workers want. They learn what is there then, whatever became of that. Raises
        UnavailableError."""
        self.look_soon()
        proposals, self._machine.proposals = self._machine.proposals, {}
        for journal, proposal in proposals.items():
            try:
                self._memberships.change(proposal)
            except ConflictError as conflict:
                log.info("journal %s: %s", journal, conflict)

    def look(self, assigned: Mapping[str, int], tell: Callable[[Message], None]) -> Found | None:
        """Who holds which, where, and what is to go; None when there are none here. ``assigned``
        are those of the assignment, with the versions of their records. Raises UnavailableError."""
        self._at = self._clock() + LOOK_SECONDS
        local, copies = self._machine.journals or {}, self._machine.copies
        own = {name: said["copy"] for name, said in local.items() if "copy" in said}
        names = {*assigned, *own}
        if not (names or copies):
            return None
        found = self._memberships.find(names, copies, self._usable, assigned)
        unwanted = {*found.message["unwanted"], *self._collected(found, assigned)}
        if unwanted and not self._is_same_tree():
            unwanted = set()
        if set(found.led) - set(self._znodes.led):
            self._znodes.look_anew()
        self._znodes.led = found.led
        locked = {said["flow"] for said in local.values() if said.get("locked")}
        texts = self._texts.of(locked)
        tell({**found.message, "unwanted": sorted(unwanted), "texts": texts})
        return found

    def settle(self, found: Found) -> None:
        """Hand over what this node leads and cannot, and forget what others have ended. Raises
        ConflictError, UnavailableError."""
        local, usable = self._machine.journals or {}, self._usable
        self._znodes.forget({n: j for n, j in found.forgotten.items() if n not in local})
        unneeded = self._znodes.acks(found.lost.keys()).unneeded if found.lost else ()
        for name, record in found.lost.items():
            own = usable.get(name, "")
            if name not in unneeded and self._memberships.hand_over(name, record, own):
                self.look_soon()

    @property
    def _usable(self) -> dict[str, str]:
        """Journal -> the id of the copy that lies here and is not damaged."""
        local = self._machine.journals or {}
        ids = dict(self._machine.copies)
        ids.update((name, said["copy"]) for name, said in local.items() if "copy" in said)
        return {n: copy for n, copy in ids.items() if not local.get(n, {}).get("damaged")}

    def _collected(self, found: Found, assigned: Collection[str]) -> tuple[str, ...]:
        """Those of the copies here whose journals are collected, and their records removed. A copy
        may come to be after its record was seen for the last time."""
        local = {*self._machine.copies, *assigned}
        present = {*self._machine.copies, *found.message["journals"]}.difference(found.absent)
        collected = self._remember(present, local).deleted(found.absent)
        self._unknown = set(found.absent).difference(collected)
        return collected
