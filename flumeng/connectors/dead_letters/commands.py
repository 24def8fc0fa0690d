"""Replays and purges of the dead letters of a flow. Run where their files can be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flumeng.connectors.dead_letters import purging, replay_lists
from flumeng.connectors.dead_letters.directory import OnProgress
from flumeng.connectors.dead_letters.of_flow import FlowDeadLetters
from flumeng.connectors.dead_letters.purging import Counted, Purge
from flumeng.connectors.dead_letters.replay_lists import Listing, ReplayList, Replays
from flumeng.connectors.dead_letters.selection import Selection
from flumeng.control.commands import derived_flows
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import ConflictError, UserError


def silent(_files: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Replay:
    """A replay by a new ``flow`` of the dead letters in ``listing``."""

    letters: FlowDeadLetters
    flow: str
    choice: Selection
    listing: Listing

    @property
    def listed(self) -> ReplayList:
        """A new list of the dead letters. Raises UserError when there are none."""
        if not self.listing.files:
            raise UserError(_nothing(self.letters.of.flow, self.listing))
        name = derived_flows.list_name(self.flow)
        return ReplayList.of(name, self.choice, self.listing.files)

    @property
    def document(self) -> dict[str, Any]:
        """The JSON of the command."""
        rest = {**asdict(self.listing), "files": len(self.listing.files)}
        of = self.letters.of.flow
        return {"flow": self.flow, "replay_of": of, "letters": self.listing.chosen, **rest}

    def write(self, listed: ReplayList) -> None:
        """Write the list; it counts once its flow exists."""
        directory, of = self.letters.directory, self.letters.of.flow
        for unused in self.letters.replays.unused:
            replay_lists.remove(directory, of, unused)
        replay_lists.write(directory, of, listed)

    def start(self, operator: Operator, listed: ReplayList) -> None:
        """Create the flow that reads the list. Raises as ``derived_flows.start_replay``."""
        chosen = f"{_letters(listed.chosen)}{self.choice.words}"
        derived_flows.start_replay(
            operator, self.letters.of, self.flow, listed.name, listed.rows, chosen=chosen
        )


def plan_replay(
    store: Store,
    name: str,
    choice: Selection,
    *,
    own_name: str | None = None,
    again: bool = False,
    progress: OnProgress = silent,
    letters: FlowDeadLetters | None = None,
) -> Replay:
    """List the dead letters that a replay would take; writes nothing. Raises UserError."""
    letters = letters or FlowDeadLetters.open(store, name)
    derived_flows.require_own_place(store, letters.of)
    derived_flows.refuse_hosts(store, letters.of)
    made = own_name or derived_flows.free_name(store, name, "replay")
    derived_flows.check_replay(store, letters.of, made)
    taken = Replays() if again else letters.replays
    listing = replay_lists.list_dead_letters(
        letters.directory, letters.files, choice, taken, progress
    )
    return Replay(letters, made, choice, listing)


@dataclass
class PlannedPurge:
    """A purge of the ``counted`` dead letters. ``damaged``: files that stay, with reasons."""

    letters: FlowDeadLetters
    choice: Selection
    purge: Purge
    counted: Counted
    replayed: bool
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The JSON of the command."""
        return {
            "flow": self.letters.of.flow,
            "letters": self.counted.letters,
            "files": len(self.counted.whole),
            "rewritten": len(self.counted.parts),
            "bytes": self.counted.bytes,
            "damaged": self.counted.damaged | self.damaged,
        }

    def note(self, operator: Operator) -> None:
        """Audit the purge, before ``delete``. Raises ConflictError if the flow has changed."""
        replayed = " replayed" if self.replayed else ""
        derived_flows.note_purge(
            operator, self.letters.of, f"{self._total}{replayed}{self.choice.words}"
        )

    @property
    def _total(self) -> str:
        return _letters(self.counted.letters)

    def delete(self, progress: OnProgress = silent) -> Mapping[str, str]:
        """Delete the dead letters; return the damaged files. May be repeated."""
        letters = self.letters
        self.damaged |= purging.delete(letters.directory, self.counted, self.purge, progress)
        current: Collection[str] = letters.of.current.values()
        replay_lists.forget(letters.directory, letters.of.flow, letters.replays, current)
        return self.damaged


def plan_purge(
    store: Store,
    name: str,
    choice: Selection,
    *,
    replayed: bool = False,
    progress: OnProgress = silent,
    letters: FlowDeadLetters | None = None,
) -> PlannedPurge:
    """Count the dead letters to purge; deletes nothing. Raises UserError, and ConflictError while a
    replay reads dead letters."""
    letters = letters or FlowDeadLetters.open(store, name)
    derived_flows.require_own_place(store, letters.of)
    if unfinished := letters.unfinished:
        raise ConflictError(
            f"{len(unfinished)} replay{'s' if len(unfinished) > 1 else ''} of flow {name} "
            f"{'is' if len(unfinished) == 1 else 'are'} not finished ({', '.join(unfinished)}): a "
            f"running one stops when it is (`flumeng flow wait {unfinished[0]} --stopped`); start "
            "or delete one that was stopped before"
        )
    replays = letters.replays
    purge = Purge(choice, replays.only(replays.done) if replayed else None)
    counted = purging.count(letters.directory, letters.files, purge, progress)
    return PlannedPurge(letters, choice, purge, counted, replayed)


def _nothing(name: str, listing: Listing) -> str:
    if listing.replayed:
        return (
            f"all {listing.replayed} selected dead letter{'' if listing.replayed == 1 else 's'} of "
            f"flow {name} were replayed before: --again replays them again"
        )
    if listing.bodiless:
        return f"none of the selected dead letters of flow {name} has a body to replay"
    return f"flow {name} has no such dead letters"


def _letters(number: int) -> str:
    return f"{number} dead letter{'' if number == 1 else 's'}"
