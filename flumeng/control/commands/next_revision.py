"""The next revision of one flow, before and after it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flumeng.config.flow_names import whole_of
from flumeng.control.commands.parts import Leaving
from flumeng.control.zookeeper import Versioned, Write
from flumeng.platform.errors import ConflictError, UserError
from zkschema import records

WRITE_CHARACTERS = 1000


class RefusedError(ConflictError):
    """Flows that may not be applied now: flow -> why. None was applied."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        self.refused = dict(refused)
        super().__init__("\n".join(refused.values()))


class UnfitError(RefusedError, UserError):
    """As ``RefusedError``, for texts that their author has to change."""


@dataclass(frozen=True)
class Applied:
    """The flow's revision now, and whether this call made it. ``left``: isolated parts that it
    lost. ``because``: the flow changes with another one."""

    flow: str
    revision: int
    changed: bool
    left: tuple[Leaving, ...] = ()
    because: str = ""


@dataclass(frozen=True)
class NextRevision:
    """``number`` is that of the ``current`` revision when the texts are the same. ``runs``: what
    the tasks run instead of ``text``, composed with those of the ``chain``, whose last flow is
    ``origin``. ``outdated``: revisions that are removed. ``cursors``: the writes that create its
    cursor at another flow. ``leaving``: isolated parts that it loses, ``left`` describes them."""

    flow: str
    text: str
    number: int
    current: Versioned[records.Flow] | None
    runs: str = ""
    state: str = "running"
    because: str = ""
    outdated: tuple[int, ...] = ()
    cursors: tuple[Write, ...] = ()
    leaving: Mapping[str, Versioned[records.Flow]] = field(default_factory=dict)
    left: tuple[Leaving, ...] = ()
    chain: Mapping[str, Versioned[records.Flow]] = field(default_factory=dict)
    origin: str = ""

    @property
    def effective(self) -> str:
        return self.runs or self.text

    @property
    def characters(self) -> int:
        """An upper estimate of the size of its writes."""
        writes = 8 + len(self.cursors) + len(self.leaving) + len(self.outdated)
        return len(self.text) + len(self.runs) + WRITE_CHARACTERS * writes

    @property
    def changed(self) -> bool:
        return self.current is None or self.number != self.current.value.revision

    @property
    def applied(self) -> Applied:
        left = self.left if self.changed else ()
        return Applied(self.flow, self.number, self.changed, left, self.because)


def groups(wanted: Iterable[NextRevision]) -> list[list[NextRevision]]:
    """Revisions that change together, in order."""
    ordered = list(wanted)
    origins = {one.flow: one.origin for one in ordered if one.origin}
    found: dict[str, list[NextRevision]] = {}
    for one in ordered:
        whole = whole_of(one.flow)
        found.setdefault(origins.get(whole, whole), []).append(one)
    return list(found.values())


def why_too_large(group: list[NextRevision], size_bytes: int, limit_bytes: int) -> str:
    """Why the group does not fit into one transaction."""
    origin = next((one.origin for one in group if one.origin), "")
    what, advice = f"flow {group[0].flow}", "make its text shorter"
    if origin:
        what = f"{len(group)} flows and parts that read flow {origin} through filters of others"
        advice = "let fewer flows read `after: filters`, or apply new ones in smaller groups"
    elif len(group) > 1:
        what += f" with its {len(group) - 1} isolated parts"
        advice = "make its text shorter, or isolate fewer of its sinks"
    return (
        f"{what} change together: that takes {size_bytes // 1024} KiB, and at most "
        f"{limit_bytes // 1024} KiB fit into a transaction: {advice}"
    )
