"""Translates the sinks of a channel, of which Flume gives each event to one.

Several sinks of a channel become a group of sinks in flumeng, which follows Flume's sink group if
there is one. flumeng writes a sink with as many tasks as needed, so sinks that write the same
become one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flumeng_flume.answers import Setting, millis
from flumeng_flume.drafts import Draft, End, sinks_of
from flumeng_flume.findings import Log
from flumeng_flume.groups import Kind, NoGroupError, grouped
from flumeng_flume.ng.agents import Agent, Part
from flumeng_flume.ng.sinks import stand_in
from flumeng_flume.stream import Stream

Resolve = Callable[[Part], list[End] | None]
"""Returns the flumeng sinks for a sink of Flume: several when another agent receives its events."""


@dataclass(frozen=True)
class Sharing:
    """How sinks share events; ``order`` begins with the first one. ``group`` is the sink group that
    sets this, if any."""

    how: str
    order: tuple[Part, ...]
    group: Part | None = None

    @property
    def kind(self) -> Kind:
        return "first_of" if self.how == "failover" else "one_of"


def of_channel(agent: Agent, channel: str, resolve: Resolve, stream: Stream, log: Log) -> list[End]:
    """Return the sinks of flumeng for the events of a channel, after the filters of ``stream``."""
    sinks = [part for part in agent.parts["sinks"].values() if part.get("channel") == channel]
    for part in sinks:
        log.mapped(part.settings["channel"].location, "the flow")
    sharing = _sharing(agent, sinks)
    resolved = [(part, resolve(part)) for part in sharing.order]
    resolved_sinks = [(part, drafts) for part, drafts in resolved if drafts]
    ends = _merged(sharing, resolved_sinks, stream, log) if resolved_sinks else []
    if sharing.group is not None:
        made = [end for end in ends if isinstance(end, Draft) and end.name == sharing.kind]
        _of_group(sharing, made[0] if made else None, log)
    if not resolved_sinks and sinks:
        return [stand_in(sinks[0], log)]
    return ends


def _merged(
    sharing: Sharing, resolved_sinks: Sequence[tuple[Part, list[End]]], stream: Stream, log: Log
) -> list[End]:
    distinct: dict[str, tuple[Part, list[End]]] = {}
    for part, drafts in resolved_sinks:
        first, _ = distinct.setdefault(_text(drafts), (part, drafts))
        if first is not part:
            log.mapped(
                part.type_location, f"the same sink as {first.name}; its tasks share the work"
            )
            for draft in sinks_of(drafts):
                if draft.batch_seconds and draft.batch_seconds[1].location != draft.location:
                    log.differs(
                        draft.batch_seconds[1].location, f"the value of {first.name} is used"
                    )
    alternatives = list(distinct.values())
    _, taken = alternatives[0]
    if len(alternatives) == 1:
        return taken
    ways = [drafts for _, drafts in alternatives]
    if sharing.how == "failover" and (combined := _targets(ways)) is not None:
        return [combined]
    first = alternatives[0][0]
    filters = () if stream.kafka else stream.filters
    try:
        group = grouped(sharing.kind, ways, first.type_location, filters, log)
    except NoGroupError as why:
        for part, _ in alternatives[1:]:
            log.missing(
                part.type_location,
                f"each event goes to one of several sinks ({sharing.how}); {first.name} gets all "
                f"of them: {why}",
            )
        return taken
    if sharing.group is None:
        for part, _ in alternatives:
            log.differs(
                part.type_location,
                "one_of: the sinks take turns, and do not wait for one that is down",
            )
    return [group]


def _text(drafts: Sequence[End]) -> str:
    return repr([draft.to_yaml() for draft in drafts])


def _targets(alternatives: Sequence[list[End]]) -> Draft | None:
    """Return one sink with all targets; None when the alternatives differ in anything else."""
    singles = [
        end
        for ends in alternatives
        for end in ends
        if isinstance(end, Draft) and "targets" in end.options.values and len(ends) == 1
    ]
    if len(singles) < len(alternatives):
        return None
    rest = {
        repr((single.name, {k: v for k, v in single.options.values.items() if k != "targets"}))
        for single in singles
    }
    if len(rest) > 1:
        return None
    targets = [target for single in singles for target in single.options.values["targets"]]
    singles[0].options.values["targets"] = list(dict.fromkeys(targets))
    return singles[0]


def _sharing(agent: Agent, sinks: Sequence[Part]) -> Sharing:
    for group in agent.parts["sinkgroups"].values():
        members = group.get("sinks").split()
        if not any(part.name in members for part in sinks):
            continue
        kind = group.get("processor.type", "default").lower()
        kind = _CLASSES.get(kind, kind)
        order = [part for name in members for part in sinks if part.name == name]
        order += [part for part in sinks if part not in order]
        if kind == "failover":
            order.sort(key=lambda part: -_priority(group.get(f"processor.priority.{part.name}")))
        return Sharing(kind, tuple(order), group)
    return Sharing("shared", tuple(sinks))


def _priority(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -(2**31)


_CLASSES: Mapping[str, str] = {
    "org.apache.flume.sink.failoversinkprocessor": "failover",
    "org.apache.flume.sink.loadbalancingsinkprocessor": "load_balance",
    "org.apache.flume.sink.defaultsinkprocessor": "default",
}
_GROUPS: Mapping[str, str] = {
    "failover": "the next sink is taken when one fails",
    "load_balance": "its sinks share the events",
    "default": "a single sink",
}


def _of_group(sharing: Sharing, made: Draft | None, log: Log) -> None:
    """Map the properties of a sink group; ``made`` is the group that it became, if any."""
    group = sharing.group
    assert group is not None
    if sharing.how not in _GROUPS:
        log.missing(group.type_location, f"flumeng does not know the sink processor {sharing.how}")
    meaning = _GROUPS.get(sharing.how, "the order of the sinks")
    for name, setting in group.settings.items():
        if name in ("sinks", "processor.type") or name.startswith("processor.priority."):
            log.mapped(setting.location, meaning if made is None else f"{made.name}: {meaning}")
        elif name in ("processor.maxpenalty", "processor.selector.maxTimeOut"):
            _of_penalty(setting, made, log)
        elif name == "processor.backoff" and made is not None and setting.value != "true":
            log.differs(setting.location, "a sink that fails is paused for backoff_seconds")
        elif name == "processor.selector" and made is not None and setting.value != "round_robin":
            log.differs(setting.location, "the sinks take turns")
        elif name in ("processor.backoff", "processor.selector"):
            log.mapped(setting.location, "nothing to set")
        else:
            log.missing(setting.location, "unknown property of a sink group")


def _of_penalty(setting: Setting, made: Draft | None, log: Log) -> None:
    """Set the longest back-off. As in Flume the first one is a second."""
    if made is None:
        log.mapped(setting.location, "nothing to set: flumeng chooses the wait itself")
        return
    try:
        seconds = min(max(0.1, millis(setting.value)), 86_400)
    except ValueError as error:
        log.missing(setting.location, f"max_backoff_seconds: {error}")
        return
    made.options.set("backoff_seconds", min(1, seconds))
    made.options.set("max_backoff_seconds", seconds, setting)
    log.mapped(setting.location, f"max_backoff_seconds: {seconds:g}")
