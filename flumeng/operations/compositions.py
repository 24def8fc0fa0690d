"""What flows run that read others (see ``flumeng.spec.composition``), as it follows from what is
applied: a flow whose text changes changes those that are made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flumeng.spec import SpecError, parse_flow
from flumeng.spec.composition import CycleError, composed, source_of, way_of
from flumeng.spec.flow_names import is_part
from flumeng.store import Found, ReadableStore, Versioned
from zkschema import paths, records


@dataclass(frozen=True)
class Composition:
    """``text`` is what the author of a flow wrote, ``runs`` what its tasks run instead, or empty.
    ``made_of``: the flows on the way to the journals, of whose texts that is made. ``because``: why
    it changes although nobody applies it."""

    text: str
    runs: str = ""
    made_of: tuple[str, ...] = ()
    because: str = ""

    @property
    def effective(self) -> str:
        return self.runs or self.text


class CurrentTexts:
    """The flows that are there, each read once; what is ``applied`` counts for theirs."""

    def __init__(self, store: ReadableStore, applied: Mapping[str, str]) -> None:
        self._store = store
        self._applied = applied
        self.flows: dict[str, Found[records.Flow]] = {}
        self.revisions: dict[str, records.Revision] = {}

    def read(self, flows: Iterable[str]) -> None:
        """Each flow before its text: a text never changes. Those that are being deleted have
        none."""
        missing = [flow for flow in dict.fromkeys(flows) if flow not in self.flows]
        found = self._store.read_each([paths.flow(flow) for flow in missing])
        self.flows |= zip(missing, found, strict=True)
        there = {
            flow: one.value.revision
            for flow, one in zip(missing, found, strict=True)
            if isinstance(one, Versioned) and one.value.state != "deleted"
        }
        texts = self._store.read_each(
            [paths.revision(flow, str(number)) for flow, number in there.items()]
        )
        self.revisions |= {
            flow: one.value
            for flow, one in zip(there, texts, strict=True)
            if isinstance(one, Versioned)
        }

    def text_of(self, flow: str) -> str | None:
        """What its author wrote; None when there is none."""
        if flow in self._applied:
            return self._applied[flow]
        self.read([flow])
        found = self.revisions.get(flow)
        return found.text if found else None

    def root_of(self, flow: str) -> str:
        """The flow whose journals it reads now."""
        found = self.revisions.get(flow)
        try:
            source = source_of(parse_flow(found.effective)) if found else None
        except SpecError:
            source = None
        return source.name if source else flow

    def readers(self, flows: Iterable[str]) -> list[str]:
        """The other flows that may be made of these: those that read the same journals, or
        theirs."""
        known = set(flows)
        self.read(sorted(known))
        there = set(self._store.children(paths.flows()))
        roots = sorted({*known, *map(self.root_of, known)} & there)
        cursors = self._store.children_many([paths.acks(root) for root in roots])
        names = {name for one in cursors for name in one if not is_part(name)}
        readers = sorted((names & there) - known)
        self.read(readers)
        return [name for name in readers if name in self.revisions]


@dataclass(frozen=True)
class Compositions:
    """``made`` are the flows that are applied, and behind them those that change with them;
    ``refused``: flow -> why it may not be applied. ``flows`` are the records as they were before
    anything else was looked at: of two who change flows that are made of each other, one is refused
    by their versions."""

    made: Mapping[str, Composition]
    refused: Mapping[str, str]
    flows: Mapping[str, Found[records.Flow]]


def compositions(store: ReadableStore, texts: Mapping[str, str]) -> Compositions:
    """What these flows (name -> text) run when they are applied together."""
    current = CurrentTexts(store, texts)
    current.read(texts)
    made: dict[str, Composition] = {}
    refused: dict[str, str] = {}
    for flow, text in texts.items():
        try:
            made[flow] = _composition(current, flow) or Composition(text)
        except CycleError as error:
            refused[flow] = str(error)
        except SpecError as error:
            refused[flow] = f"flow {flow}: {_said(error)}"
    for reader in current.readers(texts):
        changed = [flow for flow in _way(current, reader) if flow in texts]
        if not changed or any(flow in refused for flow in changed):
            continue
        try:
            one = _composition(current, reader)
        except SpecError as error:
            refused[changed[0]] = f"flow {reader} reads {changed[0]}, and then: {_said(error)}"
            continue
        if one is not None and one.effective != current.revisions[reader].effective:
            because = f"filters of {', '.join(changed)} changed"
            made[reader] = replace(one, because=because)
    return Compositions(made, refused, current.flows)


def made_of(store: ReadableStore, flow: str) -> list[str]:
    """The flows that have this one on the way to their journals."""
    current = CurrentTexts(store, {})
    return [reader for reader in current.readers([flow]) if flow in _way(current, reader)]


def _way(current: CurrentTexts, flow: str) -> tuple[str, ...]:
    """Nothing when it leads nowhere."""
    try:
        return tuple(step.flow for step in way_of(flow, current.text_of))
    except (CycleError, SpecError):
        return ()


def _composition(current: CurrentTexts, flow: str) -> Composition | None:
    """None when a flow is not there that it reads. Raises ``CycleError``, ``SpecError``."""
    text = current.text_of(flow)
    steps = way_of(flow, current.text_of)
    texts = [found for step in steps if (found := current.text_of(step.flow)) is not None]
    if text is None or len(texts) < len(steps):
        return None
    runs = composed(text, steps, texts)
    return Composition(text, runs, tuple(step.flow for step in steps) if runs else ())


def _said(error: SpecError) -> str:
    return "; ".join(
        f"{one.path}: {one.message}" if one.path else one.message for one in error.problems
    )
