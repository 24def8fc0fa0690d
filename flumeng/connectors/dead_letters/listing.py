"""Lists the letters for a replay: those chosen that no replay has taken before."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from flumeng.connectors.dead_letters.choice import Choice
from flumeng.connectors.dead_letters.directory import LetterDirectory, LetterFile, Tell, each
from flumeng.connectors.dead_letters.reading import Letters, open_letters
from flumeng.connectors.dead_letters.replay_lists import ListedFile, Replays
from flumeng.events.schema import EVENT_SCHEMA

BODY = pa.schema([EVENT_SCHEMA.field("body")])


@dataclass
class Listing:
    """``files`` have letters to take. ``replayed``: chosen letters that were taken before;
    ``bodiless``: those without a body, which are no events."""

    files: list[ListedFile] = field(default_factory=list)
    replayed: int = 0
    bodiless: int = 0
    places: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> int:
        return sum(file.chosen for file in self.files)


@dataclass(frozen=True)
class _Counted:
    file: ListedFile
    replayed: int
    places: dict[str, int]
    bodiless: bool


def list_letters(
    directory: LetterDirectory,
    files: list[LetterFile],
    choice: Choice,
    replays: Replays,
    tell: Tell = lambda _files: None,
) -> Listing:
    """Raises UserError, UnavailableError."""

    def work(file: LetterFile) -> _Counted:
        letters = open_letters(directory, file)
        taken = replays.taken(file)
        rows = chosen = meant = 0
        places: dict[str, int] = {}
        for _, batch in letters.dead(Choice()):
            rows += batch.num_rows
            meant += choice.mask(batch).true_count
            mask = ListedFile("", 0, 0, 0, taken).mask(choice, batch)
            chosen += mask.true_count
            for counted in pc.value_counts(batch["dead_place"].filter(mask)).to_pylist():
                name = counted["values"] or ""
                places[name] = places.get(name, 0) + counted["counts"]
        listed = ListedFile(file.name, file.bytes, rows, chosen, taken)
        return _Counted(listed, meant - chosen, places, chosen > 0 and _lacks_bodies(letters))

    listing = Listing()
    for _, found in each(files, work, listing.damaged, tell):
        listing.replayed += found.replayed
        if found.bodiless:
            listing.bodiless += found.file.chosen
        elif found.file.chosen:
            listing.files.append(found.file)
            for name, count in found.places.items():
                listing.places[name] = listing.places.get(name, 0) + count
    return listing


def _lacks_bodies(letters: Letters) -> bool:
    first = next(letters.read(BODY, 0, 1), None)
    return first is None or first["body"].null_count == first.num_rows
