"""The dead letters of a flow, as far as they can be read from this host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flumeng.connectors.dead_letters import replay_lists
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory, DeadLetterFile
from flumeng.connectors.dead_letters.replay_lists import Replays
from flumeng.connectors.dead_letters.summary import Summary
from flumeng.control.commands import derived_flows
from flumeng.control.commands.derived_flows import DeadLettersOf
from flumeng.control.queries import timestamps
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import UserError


@dataclass(frozen=True)
class FlowDeadLetters:
    of: DeadLettersOf
    directory: DeadLetterDirectory
    files: list[DeadLetterFile]
    replays: Replays

    @classmethod
    def open(cls, store: ReadableStore, name: str) -> FlowDeadLetters:
        """List the files. Raises UserError when they cannot be read here, UnavailableError."""
        of = derived_flows.dead_letters_of(store, name)
        directory = DeadLetterDirectory(of.files.location)
        if of.files.local_path and not directory.store.exists(directory.root):
            raise UserError(
                f"{directory.root} is not on this host: either flow {name} has no dead letters "
                "yet, or they are on the host that collects it: run this there"
            )
        replays = replay_lists.replays(directory, name, of.current.values())
        return cls(of, directory, directory.files(), replays)

    @property
    def unfinished(self) -> list[str]:
        """The replay flows that have not read all of their dead letters."""
        return sorted(
            flow for flow, listed in self.of.current.items() if listed not in self.replays.done
        )

    def as_json(self, totals: Summary) -> dict[str, Any]:
        """Return the counts as ``flow dead list --json`` prints them."""
        kinds = [
            {
                **asdict(kind),
                "first": timestamps.utc(kind.first // 1_000_000),
                "last": timestamps.utc(kind.last // 1_000_000),
            }
            for kind in totals.kinds
        ]
        path = self.of.files.path
        return {"flow": self.of.flow, "path": path, **asdict(totals), "kinds": kinds}
