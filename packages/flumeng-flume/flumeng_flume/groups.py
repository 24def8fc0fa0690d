"""Groups of sinks, for what Flume has of failover and of sharing the load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from flumeng_flume.drafts import Draft, End, problems_of
from flumeng_flume.findings import Log, Place

Kind = Literal["first_of", "one_of"]


class NoGroupError(Exception):
    """Why sinks cannot be members of a group."""


def grouped(
    kind: Kind,
    alternatives: Sequence[Sequence[End]],
    place: Place,
    filters: Iterable[Any],
    log: Log,
) -> Draft:
    """A group for what stands at ``place``, in which each alternative is a member. Raises
    NoGroupError."""
    members: list[Draft] = []
    for ends in alternatives:
        if len(ends) != 1 or not isinstance(ends[0], Draft):
            raise NoGroupError("one of them goes several ways, and a member of a group is one sink")
        members.append(ends[0])
    group = Draft("sink", kind, place)
    told: list[Any] = []
    for member in members:
        same = member.name == kind
        told += member.options.values["sinks"] if same else [member.to_yaml()]
    group.options.set("sinks", [one for n, one in enumerate(told) if one not in told[:n]])
    if wrong := problems_of(group, filters):
        raise NoGroupError(wrong[0][1])
    asked = [one.batch_seconds for one in members if one.batch_seconds is not None]
    group.batch_seconds = min(asked, key=lambda one: one[0], default=None)
    for one in asked:
        if one is not group.batch_seconds:
            log.differs(one[1].place, "batch.seconds is for all sinks of the flow: the shortest")
    return group
