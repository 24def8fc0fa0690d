"""Groups of sinks, for Flume's failover and load balancing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from flumeng_flume.drafts import Draft, End, problems_of
from flumeng_flume.findings import Location, Log

Kind = Literal["first_of", "one_of"]


class NoGroupError(Exception):
    """Sinks cannot be members of a group; the message has the reason."""


def grouped(
    kind: Kind,
    alternatives: Sequence[Sequence[End]],
    location: Location,
    filters: Iterable[Any],
    log: Log,
) -> Draft:
    """Return a group at ``location`` with each alternative as a member. Raises NoGroupError."""
    members: list[Draft] = []
    for ends in alternatives:
        if len(ends) != 1 or not isinstance(ends[0], Draft):
            raise NoGroupError("a member of a group is a single sink, and one of these has several")
        members.append(ends[0])
    group = Draft("sink", kind, location)
    entries: list[Any] = []
    for member in members:
        same = member.name == kind
        entries += member.options.values["sinks"] if same else [member.to_yaml()]
    group.options.set(
        "sinks", [entry for n, entry in enumerate(entries) if entry not in entries[:n]]
    )
    if wrong := problems_of(group, filters):
        raise NoGroupError(wrong[0][1])
    asked = [member.batch_seconds for member in members if member.batch_seconds is not None]
    group.batch_seconds = min(asked, key=lambda seconds: seconds[0], default=None)
    for setting in asked:
        if setting is not group.batch_seconds:
            log.differs(
                setting[1].location, "batch.seconds is for all sinks of the flow: the shortest"
            )
    return group
