"""Agents of Flume NG as flows.

A flow is made of the sources that feed the same channels in the same way; its sinks are those of
these channels. A hop over Avro or Thrift between two imported agents is left out: the sinks of the
receiving agent become those of the sender's flow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flumeng.platform.errors import UserError
from flumeng_flume.drafts import (
    Draft,
    End,
    Fork,
    Names,
    Way,
    label,
    problems,
    segment,
    sinks_of,
    to_text,
)
from flumeng_flume.findings import Finding, Imported, ImportedFlow, Location, Log
from flumeng_flume.ng import agents, channels, interceptors, outputs, selectors, sinks, sources
from flumeng_flume.ng.agents import Agent, Part
from flumeng_flume.ng.channels import Journal
from flumeng_flume.ng.hops import RPC, Hops, Receiver, receiver
from flumeng_flume.ng.sources import Origin
from flumeng_flume.stream import Stream

SOURCES = 100
"""Most sources of a flow file; more are split into several flows."""


@dataclass
class Group:
    """Sources that feed the same channels in the same way."""

    agent: Agent
    channels: tuple[str, ...]
    origins: list[Origin]


@dataclass
class Behind:
    """The filters and sinks after the sources of a group."""

    stream: Stream
    ends: list[End] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)


@dataclass
class Made:
    """A flow, and the components of Flume that it replaces."""

    name: str
    of: str
    flow: dict[str, Any]
    parts: list[Part] = field(default_factory=list)


def translate(
    files: Mapping[str, str], environment: Mapping[str, str], only: str | None = None
) -> Imported:
    """Return the flows of all agents in ``files`` (content by name), or only of the agent ``only``.
    Raises ``UserError`` for a file without any agent, and when there is none of that name."""
    log = Log()
    read_agents = [
        agent
        for file, text in files.items()
        for agent in agents.read(file, text, environment, log, only)
    ]
    if only is not None and not read_agents:
        raise UserError(f"there is no agent {only}")
    made = _Translation(read_agents, log).flows()
    findings = log.findings()
    return Imported(tuple(_finished(flow, findings) for flow in made), findings)


def _finished(made: Made, findings: Iterable[Finding]) -> ImportedFlow:
    locations = {location for part in made.parts for location in _locations(part)}
    left = [
        f"{finding.place.file}:{finding.place.line}: {finding.place.subject}: {finding.message}"
        for finding in findings
        if finding.outcome == "not mapped" and finding.place in locations
    ]
    head = [f"Imported from Flume: {made.of}."]
    return ImportedFlow(made.name, made.of, to_text(made.flow, [*head, *left]))


def _locations(part: Part) -> Iterator[Location]:
    yield part.location
    for setting in part.settings.values():
        yield setting.location


class _Translation:
    def __init__(self, agents: Sequence[Agent], log: Log) -> None:
        self._agents = agents
        self._log = log
        self._names = Names()
        self._same = {
            agent.name for agent in agents if sum(o.name == agent.name for o in agents) > 1
        }
        self._hops = Hops(agents)
        self._several: set[int] = set()

    def flows(self) -> list[Made]:
        groups = [group for agent in self._agents for group in self._groups(agent)]
        counts = Counter(id(group.agent) for group in groups)
        self._several = {agent_id for agent_id, count in counts.items() if count > 1}
        sending = [group for group in groups if not self._receives(group)]
        made = [flow for group in sending for flow in self._of_group(group)]
        for group in sorted(filter(self._receives, groups), key=self._is_target):
            group.origins = [
                o for o in group.origins if self._to(group, o) not in self._hops.reached
            ]
            for origin in group.origins:
                self._log.add(origin.log or Log())
            made += self._of_group(group) if group.origins else []
        for agent in self._agents:
            made += self._unfed(agent)
        return made

    def _is_target(self, group: Group) -> bool:
        """Whether another agent sends to the group."""
        return any(self._to(group, origin) in self._hops.targets for origin in group.origins)

    def _to(self, group: Group, origin: Origin) -> Receiver:
        return receiver(group.agent, origin.part)

    def _groups(self, agent: Agent) -> list[Group]:
        groups: dict[tuple[Any, ...], Group] = {}
        for part in agent.parts["sources"].values():
            named = part.first("channels", "channel")
            names = tuple(dict.fromkeys(named.value.split())) if named is not None else ()
            declared = tuple(name for name in names if name in agent.parts["channels"])
            if named is not None:
                self._log.mapped(named.location, "the flow's journal")
                for name in names:
                    if name not in declared:
                        self._log.missing(
                            named.location, f"{agent.name}.channels does not name {name}"
                        )
            origin = self._origin(part)
            if origin is None:
                continue
            if not declared:
                self._log.missing(
                    part.type_location, "feeds no channel, so Flume does not use it either"
                )
                continue
            alone = part.name if origin.stream.kafka else str(origin.log is not None)
            selector = tuple((k, s.value) for k, s in sorted(part.under("selector.").items()))
            key = (declared, origin.stream.key, selector, alone)
            groups.setdefault(key, Group(agent, declared, [])).origins.append(origin)
        return list(groups.values())

    def _origin(self, part: Part) -> Origin | None:
        """Translate a source. Findings about one that receives events from agents are kept apart
        until it is known whether these are imported too."""
        apart = Log() if sources.kind_of(part.type) in RPC else None
        log = self._log if apart is None else apart
        origin = sources.translate(part, log)
        if origin is None:
            self._log.add(log)
            return None
        origin.log = apart
        interceptors.apply(part, origin.stream, log)
        return origin

    def _receives(self, group: Group) -> bool:
        return all(sources.kind_of(origin.part.type) in RPC for origin in group.origins)

    def _of_group(self, group: Group) -> list[Made]:
        behind = Behind(group.origins[0].stream.copied())
        fed = [origin.part for origin in group.origins]
        behind.ends = self._outputs(group.agent, group.channels, fed, behind, ())
        _straighten(behind)
        if not behind.ends:
            for origin in group.origins:
                self._log.missing(
                    origin.part.type_location, "no flow: none of its sinks could be mapped"
                )
            return []
        sent = [draft for origin in group.origins for draft in origin.drafts]
        chunks = [sent[at : at + SOURCES] for at in range(0, len(sent), SOURCES)]
        journal = channels.joined(behind.journals, self._log)
        made = []
        for chunk in chunks:
            made += self._valid(group, chunk, behind, journal)
        for flow in made:
            flow.parts = [*(origin.part for origin in group.origins), *behind.parts]
        return made

    def _outputs(
        self,
        agent: Agent,
        names: Sequence[str],
        fed: Sequence[Part],
        behind: Behind,
        before: tuple[Receiver, ...],
    ) -> list[End]:
        """Return the sinks of the channels that these sources feed; ``before`` are the sources of
        other agents that the events passed."""
        stream = behind.stream

        def resolve(part: Part) -> list[End] | None:
            behind.parts.append(part)
            target = self._hops.target(agent, part)
            if target is None or receiver(*target) in before:
                draft = sinks.translate(part, stream, self._log)
                return [draft] if draft is not None else None
            self._hops.leave_out(part, *target, self._log)
            return self._behind_hop(*target, behind, (*before, receiver(*target)))

        by_channel: dict[str, list[End]] = {}
        for name in names:
            channel = agent.parts["channels"].get(name)
            if channel is None:
                continue
            behind.parts.append(channel)
            if stream.kafka:
                channels.unneeded(channel, self._log)
                behind.journals.append(Journal("disk"))
            else:
                behind.journals.append(channels.translate(channel, self._log))
            by_channel[name] = outputs.of_channel(agent, name, resolve, stream, self._log)
            if not by_channel[name] and (topic := behind.journals[-1].kafka) is not None:
                behind.journals[-1].kafka = None
                topic.set("value", "body")
                by_channel[name] = [Draft("sink", "kafka", channel.type_location, topic)]
                self._log.mapped(channel.type_location, "sink kafka: no sink of Flume reads it")
        return _distinct(selectors.apply(fed, by_channel, stream, self._log), self._log)

    def _behind_hop(
        self, agent: Agent, source: Part, behind: Behind, before: tuple[Receiver, ...]
    ) -> list[End]:
        """Return the sinks after another agent's source, in a branch if filters precede them."""
        beyond = Behind(behind.stream.branched(), [], behind.parts, behind.journals)
        beyond.parts.append(source)
        interceptors.apply(source, beyond.stream, self._log)
        into = (source.get("channels") or source.get("channel")).split()
        ends = self._outputs(agent, into, [source], beyond, before)
        if not ends or not beyond.stream.own:
            return ends
        return [Fork([Way("next", ends, filters=beyond.stream.own)], source.location)]

    def _flow(
        self, group: Group, sent: Sequence[Draft], behind: Behind, journal: Journal
    ) -> dict[str, Any]:
        _make_distinct(sent)
        flow: dict[str, Any] = {"flow": "", "sources": [draft.to_yaml() for draft in sent]}
        if not behind.stream.kafka:
            if name := label(group.agent.name):
                flow["place"] = {"ingest": {"labels": {"agent": name}}}
                for origin in group.origins:
                    label_command = f"label their hosts: flumeng node label HOST agent={name}"
                    self._log.mapped(origin.part.location, label_command)
            flow["durability"] = journal.durability
            flow["journal"] = dict(journal.options)
            if journal.kafka is not None:
                flow["journal"]["kafka"] = journal.kafka.values
        flow["filters"] = behind.stream.filters
        flow |= segment(behind.ends)
        if (seconds := _batch_seconds(sinks_of(behind.ends), self._log)) is not None:
            flow["batch"] = {"seconds": seconds}
        return flow

    def _valid(
        self, group: Group, sent: Sequence[Draft], behind: Behind, journal: Journal
    ) -> list[Made]:
        """Return the flow, or several flows when its sources cannot be in one."""
        flow = self._flow(group, sent, behind, journal)
        why = _refusal(flow)
        if why is not None and journal.kafka is not None:
            origin = next(iter(journal.kafka.origins.values()), None)
            if origin is not None:
                self._log.differs(origin.location, f"the journal is on the disks of nodes: {why}")
            return self._valid(group, sent, behind, Journal(journal.durability))
        forks = [end for end in behind.ends if isinstance(end, Fork)]
        if why is not None and forks:
            for fork in forks:
                self._log.missing(fork.location, f"{why}; every sink of the flow gets every event")
            together = _distinct(sinks_of(behind.ends), self._log)
            plain = Behind(behind.stream, together, behind.parts, behind.journals)
            return self._valid(group, sent, plain, journal)
        if why is not None and len(sent) > 1:
            return [flow for draft in sent for flow in self._valid(group, [draft], behind, journal)]
        if why is not None:
            self._log.missing(sent[0].location, f"no flow could be made of it: {why}")
            return []
        return [self._named(group, flow)]

    def _named(self, group: Group, flow: dict[str, Any]) -> Made:
        agent = group.agent
        words = [agent.file.rpartition("/")[2].split(".")[0]] if agent.name in self._same else []
        words.append(agent.name)
        if id(agent) in self._several:
            words.append(group.origins[0].part.name if group.origins else group.channels[0])
        flow["flow"] = self._names.flow(*words)
        named = ", ".join(origin.part.name for origin in group.origins[:5]) or group.channels[0]
        more = f" and {len(group.origins) - 5} more" if len(group.origins) > 5 else ""
        return Made(flow["flow"], f"agent {agent.name} of {agent.file}: {named}{more}", flow)

    def _unfed(self, agent: Agent) -> list[Made]:
        """Report channels that no source fills; return flows that read those in Kafka."""
        fed = {
            name
            for part in agent.parts["sources"].values()
            for name in (part.get("channels") or part.get("channel")).split()
        }
        made = []
        for name, channel in agent.parts["channels"].items():
            if name in fed:
                continue
            journal = channels.translate(channel, self._log)
            topic = journal.kafka
            if topic is None:
                self._log.missing(channel.type_location, "no source fills it")
                continue
            topic.values["topics"] = [topic.values.pop("topic")]
            behind = Behind(Stream(kafka=True), parts=[channel])
            behind.ends = self._outputs(agent, [name], [], behind, ())
            _straighten(behind)
            if not behind.ends:
                self._log.missing(
                    channel.type_location, "no flow: none of its sinks could be mapped"
                )
                continue
            source = Draft("source", "kafka", channel.type_location, topic)
            group = Group(agent, (name,), [])
            flows = self._valid(group, [source], behind, Journal("disk"))
            for flow in flows:
                flow.parts = behind.parts
                self._log.mapped(channel.type_location, "source kafka: no source of Flume fills it")
            made += flows
        for part in agent.parts["sinks"].values():
            if part.get("channel") not in agent.parts["channels"]:
                self._log.missing(
                    part.type_location, "reads no channel, so Flume does not use it either"
                )
        self._report_rest(agent)
        return made

    def _report_rest(self, agent: Agent) -> None:
        """Add a finding for each property without one."""
        for part in (part for kind in agent.parts.values() for part in kind.values()):
            if not self._log.has(part.location):
                self._log.mapped(part.location, "the components that are used")
            used = self._log.has(part.type_location)
            if part.kind == "configfilters":
                _report_filter(part, self._log)
            why = (
                "flumeng has no such setting"
                if used
                else "belongs to a component that is in no flow"
            )
            for setting in part.settings.values():
                if not self._log.has(setting.location):
                    self._log.missing(setting.location, why)


def _report_filter(part: Part, log: Log) -> None:
    for setting in part.settings.values():
        if part.type.lower() == "env":
            log.mapped(setting.location, "variables of the environment are filled in")
        else:
            log.differs(setting.location, "put its values into secrets, or into the environment")


def _make_distinct(sent: Sequence[Draft]) -> None:
    """Set different numbers for generated events, and different ports for stand-in sources."""
    for seed, draft in enumerate(draft for draft in sent if draft.name == "generate"):
        if seed:
            draft.options.set("seed", seed)
    stand_ins = (draft for draft in sent if draft.name == "http" and not draft.options.origins)
    for number, draft in enumerate(stand_ins):
        draft.options.set("listen", f"0.0.0.0:{8080 + number}")


def _straighten(behind: Behind) -> None:
    """Replace a branch that is the only one, without a condition, by its filters and sinks."""
    while len(behind.ends) == 1 and isinstance(fork := behind.ends[0], Fork):
        (way, *others) = fork.ways
        if others or way.when is not None or way.otherwise:
            return
        behind.stream.filters += way.filters
        behind.ends = way.ends


def _distinct(ends: Iterable[End], log: Log) -> list[End]:
    """Return the ends without sinks that repeat another one or write into the same directory."""
    kept: dict[str, Draft] = {}
    forks: list[End] = []
    for draft in ends:
        if isinstance(draft, Fork):
            forks.append(draft)
            continue
        path = draft.options.values.get("path")
        key = f"{draft.name} {path}" if path else repr(draft.to_yaml())
        if key in kept and draft.location != kept[key].location:
            log.differs(
                draft.location, f"line {kept[key].location.line} writes the same: one sink for both"
            )
            if draft.batch_seconds and draft.batch_seconds[1].location != draft.location:
                log.differs(draft.batch_seconds[1].location, "the value of the other sink is used")
        kept.setdefault(key, draft)
    return [*kept.values(), *forks]


def _batch_seconds(drafts: Sequence[Draft], log: Log) -> int | None:
    asked = [draft.batch_seconds for draft in drafts if draft.batch_seconds is not None]
    if not asked:
        return None
    least = min(86_400, *(seconds for seconds, _ in asked))
    for seconds, setting in asked:
        if seconds == least:
            log.mapped(setting.location, f"batch.seconds: {least}")
        else:
            log.differs(setting.location, f"batch.seconds is for all sinks of the flow: {least}")
    return least


def _refusal(flow: Mapping[str, Any]) -> str | None:
    wrong = problems({**flow, "flow": "a"})
    return f"{wrong[0].path}: {wrong[0].message}" if wrong else None
