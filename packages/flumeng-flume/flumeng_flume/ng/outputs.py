"""Where the events of a channel go: to one of its sinks each, of which one or several of flumeng's
are made.

Several sinks of a channel share its events in Flume, and a sink group says how: they become a group
of flumeng's. A sink is written by as many tasks as it takes, so that sinks that write the same
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
"""What a sink of Flume becomes: several when it goes to another agent that has several."""


@dataclass(frozen=True)
class Sharing:
    """How sinks share events: ``order`` has the first one first. ``group`` says so, if one does."""

    how: str
    order: tuple[Part, ...]
    group: Part | None = None

    @property
    def kind(self) -> Kind:
        return "first_of" if self.how == "failover" else "one_of"


def of_channel(agent: Agent, channel: str, resolve: Resolve, stream: Stream, log: Log) -> list[End]:
    """The sinks of flumeng for the events of a channel, behind the filters of ``stream``."""
    sinks = [part for part in agent.parts["sinks"].values() if part.get("channel") == channel]
    for part in sinks:
        log.mapped(part.settings["channel"].place, "the flow")
    sharing = _sharing(agent, sinks)
    resolved = [(part, resolve(part)) for part in sharing.order]
    known = [(part, drafts) for part, drafts in resolved if drafts]
    found = _one(sharing, known, stream, log) if known else []
    if sharing.group is not None:
        made = [one for one in found if isinstance(one, Draft) and one.name == sharing.kind]
        _of_group(sharing, made[0] if made else None, log)
    if not known and sinks:
        return [stand_in(sinks[0], log)]
    return found


def _one(
    sharing: Sharing, known: Sequence[tuple[Part, list[End]]], stream: Stream, log: Log
) -> list[End]:
    distinct: dict[str, tuple[Part, list[End]]] = {}
    for part, drafts in known:
        first, _ = distinct.setdefault(_text(drafts), (part, drafts))
        if first is not part:
            log.mapped(part.type_place, f"the same sink as {first.name}; its tasks share the work")
            for draft in sinks_of(drafts):
                if draft.batch_seconds and draft.batch_seconds[1].place != draft.place:
                    log.differs(draft.batch_seconds[1].place, f"what {first.name} says counts")
    alternatives = list(distinct.values())
    _, taken = alternatives[0]
    if len(alternatives) == 1:
        return taken
    ways = [drafts for _, drafts in alternatives]
    if sharing.how == "failover" and (merged := _targets(ways)) is not None:
        return [merged]
    first = alternatives[0][0]
    filters = () if stream.kafka else stream.filters
    try:
        group = grouped(sharing.kind, ways, first.type_place, filters, log)
    except NoGroupError as why:
        for part, _ in alternatives[1:]:
            log.missing(
                part.type_place,
                f"each event goes to one of several sinks ({sharing.how}); {first.name} gets all "
                f"of them: {why}",
            )
        return taken
    if sharing.group is None:
        for part, _ in alternatives:
            log.differs(part.type_place, "one_of: they take turns, and wait for none that is away")
    return [group]


def _text(drafts: Sequence[End]) -> str:
    return repr([draft.to_yaml() for draft in drafts])


def _targets(alternatives: Sequence[list[End]]) -> Draft | None:
    """One sink with all targets, when they differ in nothing else."""
    singles = [
        one
        for ends in alternatives
        for one in ends
        if isinstance(one, Draft) and "targets" in one.options.values and len(ends) == 1
    ]
    if len(singles) < len(alternatives):
        return None
    rest = {
        repr((one.name, {k: v for k, v in one.options.values.items() if k != "targets"}))
        for one in singles
    }
    if len(rest) > 1:
        return None
    targets = [target for one in singles for target in one.options.values["targets"]]
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
    "default": "one sink alone",
}


def _of_group(sharing: Sharing, made: Draft | None, log: Log) -> None:
    """Answer for the properties of a sink group, of which ``made`` has become, if any."""
    group = sharing.group
    assert group is not None
    if sharing.how not in _GROUPS:
        log.missing(group.type_place, f"flumeng does not know the sink processor {sharing.how}")
    told = _GROUPS.get(sharing.how, "the order of the sinks")
    for name, setting in group.settings.items():
        if name in ("sinks", "processor.type") or name.startswith("processor.priority."):
            log.mapped(setting.place, told if made is None else f"{made.name}: {told}")
        elif name in ("processor.maxpenalty", "processor.selector.maxTimeOut"):
            _of_penalty(setting, made, log)
        elif name == "processor.backoff" and made is not None and setting.value != "true":
            log.differs(setting.place, "one that fails is left alone for backoff_seconds")
        elif name == "processor.selector" and made is not None and setting.value != "round_robin":
            log.differs(setting.place, "they take turns")
        elif name in ("processor.backoff", "processor.selector"):
            log.mapped(setting.place, "nothing to set")
        else:
            log.missing(setting.place, "unknown property of a sink group")


def _of_penalty(setting: Setting, made: Draft | None, log: Log) -> None:
    """As in Flume the first back-off is a second."""
    if made is None:
        log.mapped(setting.place, "nothing to set: how long to wait is for flumeng to know")
        return
    try:
        seconds = min(max(0.1, millis(setting.value)), 86_400)
    except ValueError as error:
        log.missing(setting.place, f"max_backoff_seconds: {error}")
        return
    made.options.set("backoff_seconds", min(1, seconds))
    made.options.set("max_backoff_seconds", seconds, setting)
    log.mapped(setting.place, f"max_backoff_seconds: {seconds:g}")
