"""Where the events of a channel go: to one of its sinks each, of which one or several of flumeng's
are made.

Several sinks of a channel share its events in Flume, and a sink group says how. In flumeng each
sink gets every event, and a sink is written by as many tasks as it takes, so that sinks that write
the same become one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flumeng.importing.answers import Setting
from flumeng.importing.drafts import Draft, End, sinks_of
from flumeng.importing.findings import Log
from flumeng.importing.ng.agents import Agent, Part
from flumeng.importing.ng.sinks import stand_in

Resolve = Callable[[Part], list[End] | None]
"""What a sink of Flume becomes: several when it goes to another agent that has several."""


@dataclass(frozen=True)
class Sharing:
    """How sinks share events: ``order`` has the first one first."""

    how: str
    order: tuple[Part, ...]


def of_channel(agent: Agent, channel: str, resolve: Resolve, log: Log) -> list[End]:
    """The sinks of flumeng for the events of a channel."""
    sinks = [part for part in agent.parts["sinks"].values() if part.get("channel") == channel]
    for part in sinks:
        log.mapped(part.settings["channel"].place, "the flow")
    sharing = _sharing(agent, sinks, log)
    resolved = [(part, resolve(part)) for part in sharing.order]
    known = [(part, drafts) for part, drafts in resolved if drafts]
    if not known and sinks:
        return [stand_in(sinks[0], log)]
    return _one(sharing.how, known, log) if known else []


def _one(how: str, known: Sequence[tuple[Part, list[End]]], log: Log) -> list[End]:
    distinct: dict[str, tuple[Part, list[End]]] = {}
    for part, drafts in known:
        first, _ = distinct.setdefault(_text(drafts), (part, drafts))
        if first is not part:
            log.mapped(part.type_place, f"the same sink as {first.name}; its tasks share the work")
            for draft in sinks_of(drafts):
                if draft.batch_seconds is not None:
                    log.differs(draft.batch_seconds[1].place, f"what {first.name} says counts")
    alternatives = list(distinct.values())
    _, taken = alternatives[0]
    if len(alternatives) == 1:
        return taken
    if (merged := _targets([drafts for _, drafts in alternatives])) is not None:
        if how != "failover":
            log.differs(
                alternatives[0][0].type_place,
                "targets: the next one is taken when one fails; events are not shared out",
            )
        return [merged]
    for part, _ in alternatives[1:]:
        log.missing(
            part.type_place,
            f"not mapped yet: each event goes to one of several sinks ({how}); "
            f"{alternatives[0][0].name} gets all of them",
        )
    return taken


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


def _sharing(agent: Agent, sinks: Sequence[Part], log: Log) -> Sharing:
    for group in agent.parts["sinkgroups"].values():
        members = group.get("sinks").split()
        if not any(part.name in members for part in sinks):
            continue
        kind = group.get("processor.type", "default").lower()
        kind = _CLASSES.get(kind, kind)
        order = [part for name in members for part in sinks if part.name == name]
        order += [part for part in sinks if part not in order]
        answer = _GROUPS.get(kind)
        for name, setting in group.settings.items():
            _of_group(kind, name, setting, log)
        if answer is None:
            log.missing(group.type_place, f"flumeng does not know the sink processor {kind}")
            return Sharing("shared", tuple(order))
        if kind == "failover":
            order.sort(key=lambda part: -_priority(group.get(f"processor.priority.{part.name}")))
        return Sharing(kind, tuple(order))
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


def _of_group(kind: str, name: str, setting: Setting, log: Log) -> None:
    if name in ("sinks", "processor.type") or name.startswith("processor.priority."):
        log.mapped(setting.place, _GROUPS.get(kind, "the order of the sinks"))
    elif name in ("processor.maxpenalty", "processor.backoff", "processor.selector.maxTimeOut"):
        log.mapped(setting.place, "nothing to set: how long to wait is for flumeng to know")
    elif name == "processor.selector":
        log.differs(setting.place, "who shares the work is decided by the plan, not by turns")
    else:
        log.missing(setting.place, "unknown property of a sink group")
