"""Compares a site's wanted resources with the present and the last pushed ones. Pure. A difference
between present and last pushed ones is *drift*: a change by hand. Only resources that pushes own
are changed, and the chokes of flows that a push deletes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flumeng.fleet.resources import CHOKE, FLOW, Resources, digest, kind_of, name_of
from flumeng.fleet.site_state import SiteState

Verb = Literal["make", "change", "delete", "take", "confirm", "forget"]
"""``take``: a resource is already as wanted and becomes owned by pushes. ``confirm``: a flow that
went back to the wanted revision no longer counts as failed. ``forget``: no longer owned."""
DriftPolicy = Literal["refuse", "keep", "overwrite"]
BEING_DELETED = "the flow of that name is being deleted: push again when it is gone"


@dataclass(frozen=True)
class Change:
    """A change of a resource. ``before`` and ``after``: values (None: absent); ``owned_before`` and
    ``owned_after``: their digests if pushes own them."""

    key: str
    verb: Verb
    before: str | None
    after: str | None
    owned_before: str | None
    owned_after: str | None


@dataclass(frozen=True)
class Drift:
    """A resource that was changed, or removed (``there`` is None), by hand since the last push."""

    key: str
    wanted: str | None
    there: str | None


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison. ``conflicts``: reasons by key; one in any site refuses the whole
    push. ``waiting``: by key, why a node must register first. ``left``: owned keys that the
    inventory lacks; ``prune`` deletes them."""

    changes: tuple[Change, ...] = ()
    drift: tuple[Drift, ...] = ()
    conflicts: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    unchanged: int = 0


def compare(
    desired: Resources, state: SiteState, *, prune: bool = False, policy: DriftPolicy = "refuse"
) -> Comparison:
    """Return the changes that bring the site to ``desired``; ``prune`` deletes other owned ones."""
    return _Comparing(state, policy).compare(desired, prune=prune)


def restore(
    before: Mapping[str, tuple[str | None, str | None]],
    state: SiteState,
    *,
    policy: DriftPolicy = "refuse",
) -> Comparison:
    """Return the changes that restore the values and digests in ``before``."""
    comparing = _Comparing(state, policy)
    for key, (value, owned) in sorted(before.items()):
        comparing.bring(key, value, owned)
    return comparing.result()


class _Comparing:
    def __init__(self, state: SiteState, policy: DriftPolicy) -> None:
        self._state = state
        self._policy = policy
        self._changes: list[Change] = []
        self._drift: list[Drift] = []
        self._conflicts: dict[str, str] = {}
        self._waiting: dict[str, str] = {}
        self._left: list[str] = []
        self._unchanged = 0

    def compare(self, desired: Resources, *, prune: bool) -> Comparison:
        for key in sorted({*desired, *self._state.owned}):
            value = desired.get(key)
            there = self._state.resources.get(key)
            if value is None and there is not None and not prune:
                self._left.append(key)
                self._note_drift(key, None)
            elif key not in self._state.owned and there not in (None, value):
                self._conflicts[key] = (
                    "it exists, and no push made it: `flumeng push adopt` puts it under the "
                    "inventory"
                )
            else:
                self.bring(key, value, None if value is None else digest(value))
        return self.result()

    def bring(self, key: str, value: str | None, owned: str | None) -> None:
        why = self._why_not(key, value)
        if why:
            self._conflicts[key] = why
            return
        waits = "" if value is None else self._state.why_waits(key)
        if waits:
            self._waiting[key] = waits
            return
        there, pushed = self._state.resources.get(key), self._state.owned.get(key)
        if there != value and self._note_drift(key, value) and self._policy != "overwrite":
            if self._policy == "refuse":
                self._conflicts[key] = "it was changed by hand since the last push"
            return
        returned = value is not None and key in self._state.returned
        if there == value and pushed == owned and not returned:
            self._unchanged += value is not None
            return
        verb = _verb(there, value, pushed, owned)
        self._changes.append(Change(key, verb, there, value, pushed, owned))
        if verb == "delete" and kind_of(key) == FLOW:
            self._changes += self._chokes_of(name_of(key))

    def result(self) -> Comparison:
        last = {change.key: change for change in self._changes}
        return Comparison(
            tuple(last.values()),
            tuple(self._drift),
            self._conflicts,
            self._waiting,
            tuple(self._left),
            self._unchanged,
        )

    def _why_not(self, key: str, value: str | None) -> str:
        unknown = self._state.why_unknown(key)
        if unknown:
            return f"it cannot be read: {unknown}"
        if value is not None and kind_of(key) == FLOW and name_of(key) in self._state.ending:
            return BEING_DELETED
        return self._state.why_named(key, value)

    def _note_drift(self, key: str, value: str | None) -> bool:
        """Record drift; return whether the present value differs from that of the last push."""
        there, pushed = self._state.resources.get(key), self._state.owned.get(key)
        drifted = pushed is not None and (there is None or digest(there) != pushed)
        if key in self._state.went_back:
            return False  # the flow went back by itself
        if value is None and there is None:
            return False  # removed by hand, as wanted
        if drifted:
            self._drift.append(Drift(key, value, there))
        return drifted

    def _chokes_of(self, flow: str) -> Iterable[Change]:
        """Yield the removal of a deleted flow's chokes, even of those set by hand."""
        for key, there in self._state.resources.items():
            if kind_of(key) == CHOKE and name_of(key).partition("@")[0] == flow:
                yield Change(key, "delete", there, None, self._state.owned.get(key), None)


def _verb(there: str | None, value: str | None, pushed: str | None, owned: str | None) -> Verb:
    if there == value and pushed == owned:
        return "confirm"
    if there == value:
        return "forget" if owned is None else "take"
    if there is None:
        return "make"
    return "delete" if value is None else "change"
