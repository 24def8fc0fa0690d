"""Nodes of Flume OG as flows.

Nodes that send to others are hops that flumeng does not need: the sources run on the hosts of the
agents, and the sinks are those of the collectors. Agents with equal sources that end in the same
sinks are one flow; so are agents on the same hosts, with any sources.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
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
from flumeng_flume.groups import NoGroupError, grouped
from flumeng_flume.og import decorators, sinks, sources
from flumeng_flume.og.parser import read
from flumeng_flume.og.tree import (
    Call,
    Decorated,
    Failover,
    FanOut,
    Node,
    OnHost,
    Rolled,
    Sink,
    Statement,
)
from flumeng_flume.stream import Stream

AGENTS: Mapping[str, str] = {
    "agentSink": "E2E", "agentE2ESink": "E2E", "agentDFOSink": "DFO", "agentBESink": "BE",
    "agentE2EChain": "E2E", "agentDFOChain": "DFO", "agentBEChain": "BE",
    "autoE2EChain": "E2E", "autoDFOChain": "DFO", "autoBEChain": "BE",
    "agentFailChain": "E2E", "autoFailChain": "E2E",
    "logicalSink": "", "rpcSink": "", "thriftSink": "", "avroSink": "",
}  # fmt: skip
"""Sinks that send to other nodes, with the reliability that each asks for."""
RELIABILITY: Mapping[str, dict[str, str]] = {
    "E2E": {"durability": "disk", "delivery": "at-least-once"},
    "DFO": {"durability": "spill", "delivery": "at-least-once"},
    "BE": {"durability": "memory", "delivery": "at-most-once"},
}
COLLECTOR_PORT = "35853"


@dataclass
class _Path:
    """The filters of a source, and the sinks that its events reach."""

    stream: Stream
    ends: list[End] = field(default_factory=list)
    promise: dict[str, str] = field(default_factory=dict)
    seconds: int | None = None

    def forked(self) -> _Path:
        """Return a copy without sinks, for another branch."""
        return _Path(self.stream.copied(), [], dict(self.promise), self.seconds)

    @property
    def text(self) -> str:
        """A key that is equal for paths with the same sinks."""
        return repr(segment(self.ends))


@dataclass
class _Agent:
    """A node whose source becomes a source of flumeng."""

    node: Node
    file: str
    source: Draft
    path: _Path

    @property
    def ends(self) -> str:
        """A key that is equal for agents with the same filters, sinks and durability."""
        path = self.path
        return repr((path.text, path.stream.key, path.promise, path.seconds))


def translate(files: Mapping[str, str]) -> Imported:
    """Return the flows of all nodes in ``files`` (content by name). Raises ``UserError`` when there
    is no node, and ``NotReadableError`` for text that is no specification."""
    statements = [
        (file, statement) for file, text in files.items() for statement in read(file, text)
    ]
    if not any(isinstance(statement, Node) for _, statement in statements):
        raise UserError(
            f"{', '.join(files)}: no node of Flume OG found: expected `NODE : SOURCE | SINK ;`"
        )
    return _Translation(statements).imported()


class _Translation:
    def __init__(self, statements: Sequence[tuple[str, Statement]]) -> None:
        self._log = Log()
        self._nodes: dict[str, tuple[str, Node]] = {}
        self._hosts: dict[str, list[str]] = {}
        self._reached: set[str] = set()
        self._names = Names()
        for file, statement in statements:
            location = Location(file, statement.at.line, "")
            if isinstance(statement, Node):
                if statement.name in self._nodes:
                    before = self._location(statement.name)
                    self._log.differs(before, f"configured again in line {statement.at.line}")
                self._nodes[statement.name] = (file, statement)
            elif isinstance(statement, OnHost):
                self._hosts.setdefault(statement.node, []).append(statement.host)
                location = Location(
                    file, statement.at.line, f"map {statement.host} {statement.node}"
                )
                self._log.mapped(location, "labels of the host, see the node")
            else:
                location = Location(file, statement.at.line, " ".join(statement.words)[:60])
                self._log.mapped(location, "nothing to set: it is no part of a flow")

    def imported(self) -> Imported:
        agents = [
            agent
            for name, (file, node) in self._nodes.items()
            if node.source.name not in sources.HOPS and (agent := self._agent(name, file, node))
        ]
        for name, (file, node) in self._nodes.items():
            if node.source.name in sources.HOPS and name not in self._reached:
                source = sources.listening(node.source, self._location(name), self._log)
                agents += self._ended(name, file, node, source, Stream())
        made = [flow for group in self._grouped(agents) for flow in self._flows(group)]
        findings = self._log.findings()
        return Imported(tuple(self._finished(*flow, findings) for flow in made), findings)

    def _location(self, name: str, call: Call | None = None) -> Location:
        file, node = self._nodes[name]
        return Location(file, (call or node).at.line, f"{name}: {call.name}" if call else name)

    def _agent(self, name: str, file: str, node: Node) -> _Agent | None:
        stream = Stream()
        location = self._location(name, node.source)
        source = sources.translate(node.source, location, stream, self._log)
        if source is None:
            return None
        return next(iter(self._ended(name, file, node, source, stream)), None)

    def _ended(
        self, name: str, file: str, node: Node, source: Draft, stream: Stream
    ) -> list[_Agent]:
        stream.headers |= {"host": "host", "nanos": "unix_micros(ts) * 1000", "body": "body"}
        path = _Path(stream)
        self._walk(node.sink, name, path, (name,))
        if not path.ends:
            self._log.missing(self._location(name), "no flow: no sink could be mapped")
            return []
        return [_Agent(node, file, source, path)]

    def _walk(self, sink: Sink, name: str, path: _Path, before: tuple[str, ...]) -> None:
        """Add the sinks for a sink to the path; ``before`` are the nodes on the way to it."""
        if isinstance(sink, FanOut):
            self._fan_out(sink, name, path, before)
        elif isinstance(sink, Failover):
            self._alternatives(sink, name, path, before)
        elif isinstance(sink, Decorated):
            self._decorated(sink, name, path)
            self._walk(sink.sink, name, path, before)
        elif isinstance(sink, Rolled):
            self._rolled(sink.by, name, path)
            self._walk(sink.sink, name, path, before)
        elif sink.name in AGENTS:
            self._hop(sink, name, path, before)
        else:
            draft = sinks.translate(sink, self._location(name, sink), path.stream, self._log)
            _add(path, [draft] if draft else [])

    def _fan_out(self, sink: FanOut, name: str, path: _Path, before: tuple[str, ...]) -> None:
        """Add the sinks of a fan-out; those with filters of their own become branches."""
        ways: list[Way] = []
        for member in sink.sinks:
            other = path.forked()
            other.stream = path.stream.branched()
            self._walk(member, name, other, before)
            promises = [promise for promise in (path.promise, other.promise) if promise]
            path.promise = max(promises, key=_strength) if promises else {}
            seconds = [number for number in (path.seconds, other.seconds) if number is not None]
            path.seconds = min(seconds) if seconds else None
            if other.stream.own and other.ends:
                named = f"{label(name)}-{len(ways) + 1}".strip("-")
                ways.append(Way(named, other.ends, filters=other.stream.own))
            else:
                _add(path, other.ends)
        if ways:
            path.ends.append(Fork(ways, self._location(name)))

    def _decorated(self, sink: Decorated, name: str, path: _Path) -> None:
        call = sink.decorator
        if call.name in decorators.DURABLE:
            path.promise = {
                "durability": decorators.DURABLE[call.name],
                "delivery": "at-least-once",
            }
        decorators.apply(call, path.stream, self._location(name, call), self._log)

    def _rolled(self, call: Call, name: str, path: _Path) -> None:
        location = self._location(name, call)
        text = call.text(0, "30000")
        if not text.isdecimal() or int(text) == 0:
            self._log.missing(location, "expected milliseconds")
            return
        path.seconds = min(max(1, int(text) // 1000), 86_400)
        self._log.mapped(location, f"batch.seconds: {path.seconds}")

    def _alternatives(
        self, sink: Failover, name: str, path: _Path, before: tuple[str, ...]
    ) -> None:
        ends = []
        for member in sink.sinks:
            other = path.forked()
            self._walk(member, name, other, before)
            ends.append(other)
        ends = [way for way in ends if way.ends]
        if not ends:
            return
        promises = [way.promise for way in ends if way.promise]
        path.promise = max(promises, key=_strength) if promises else path.promise
        self._first_of(ends, path, self._location(name), "a sink for when another fails")

    def _first_of(self, ways: Sequence[_Path], path: _Path, location: Location, what: str) -> None:
        """Add a failover group of the alternatives, or the first one if they cannot be grouped."""
        first = ways[0]
        path.stream, path.seconds = first.stream, first.seconds
        group: Sequence[End] = first.ends
        if len({way.text for way in ways}) > 1:
            try:
                if any(way.stream.key != first.stream.key for way in ways):
                    raise NoGroupError("they have different filters")
                ends = [way.ends for way in ways]
                group = [grouped("first_of", ends, location, first.stream.filters, self._log)]
                self._log.mapped(location, f"first_of: {what}")
            except NoGroupError as why:
                self._log.missing(
                    location, f"{what}: only the first one is used, also while it is down: {why}"
                )
        _add(path, group)

    def _hop(self, call: Call, name: str, path: _Path, before: tuple[str, ...]) -> None:
        location = self._location(name, call)
        reliability = AGENTS[call.name]
        if reliability:
            path.promise = dict(RELIABILITY[reliability])
        targets = [target for target in self._targets(call, name) if target not in before]
        if not targets:
            addresses = _addresses(call)
            if not addresses:
                self._log.missing(location, "no collector is among the nodes: import it too")
                return
            _add(path, [sinks.forward(addresses, location, self._log)])
            return
        ends = []
        for target in targets:
            other = path.forked()
            self._reached.add(target)
            self._walk(self._nodes[target][1].sink, target, other, (*before, target))
            self._log.mapped(self._location(target), "the sinks of the flows that end here")
            receiver = self._nodes[target][1].source
            self._log.mapped(self._location(target, receiver), "the hop is not needed any more")
            ends.append(other)
        ends = [way for way in ends if way.ends]
        promised = "; ".join(f"{key}: {value}" for key, value in path.promise.items())
        if not ends:
            return
        self._log.mapped(
            location, "the hop is not needed any more" + (f"; {promised}" if promised else "")
        )
        self._first_of(ends, path, location, "collectors with different sinks")

    def _targets(self, call: Call, name: str) -> list[str]:
        """Return the nodes to which a sink sends, in the order of attempts."""
        if call.name == "logicalSink":
            return [call.text(0)] if call.text(0) in self._nodes else []
        if call.name.startswith("auto"):
            flow = self._nodes[name][1].flow
            return [
                other
                for other, (_, node) in self._nodes.items()
                if node.source.name == "autoCollectorSource" and node.flow == flow
            ]
        addresses = _addresses(call)
        if not addresses:
            return [
                other
                for other, (_, node) in self._nodes.items()
                if node.source.name == "collectorSource"
            ]
        return list(
            dict.fromkeys(node for address in addresses for node in self._at(call, address))
        )

    def _at(self, call: Call, address: str) -> list[str]:
        host, _, port = address.rpartition(":")
        receiving = [
            (name, node)
            for name, (_, node) in self._nodes.items()
            if node.source.name in sources.HOPS
            and node.source.name not in ("logicalSource", "autoCollectorSource")
        ]
        named = [name for name, _ in receiving if host == name or host in self._hosts.get(name, ())]
        if len(named) <= 1:
            if named:
                return named
            by_port = [name for name, node in receiving if _port(node.source) == port]
            return by_port if len(by_port) == 1 and not call.name.startswith("agent") else []
        return [name for name in named if _port(self._nodes[name][1].source) == port][:1]

    def _grouped(self, agents: Sequence[_Agent]) -> Iterable[list[_Agent]]:
        """Group agents into flows: they end alike, and have the same hosts or equal sources."""
        same: dict[tuple[str, str, str], list[_Agent]] = {}
        for agent in agents:
            key = (agent.ends, agent.node.flow, repr(agent.source.to_yaml()))
            same.setdefault(key, []).append(agent)
        placed: dict[tuple[Any, ...], list[_Agent]] = {}
        for (ends, flow, source), group in same.items():
            hosts = tuple(
                sorted({h for agent in group for h in self._hosts.get(agent.node.name, ())})
            )
            placed.setdefault((ends, flow, hosts or source), []).extend(group)
        return placed.values()

    def _flows(self, group: list[_Agent]) -> list[tuple[dict[str, Any], list[_Agent]]]:
        names = [agent.node.name for agent in group]
        first = group[0]
        name = self._names.flow(_common(names))
        sent = {repr(agent.source.to_yaml()): agent.source.to_yaml() for agent in group}
        flow: dict[str, Any] = {"flow": name, "sources": list(sent.values())}
        if first.node.flow != "default-flow":
            flow["labels"] = {"flow": label(first.node.flow) or "flow"}
        flow["place"] = {"ingest": {"labels": {"flume": name}}}
        flow |= first.path.promise
        flow["filters"] = first.path.stream.filters
        flow |= segment(first.path.ends)
        if (seconds := _batch_seconds(first.path)) is not None:
            flow["batch"] = {"seconds": seconds}
        if wrong := problems(flow):
            for agent in group:
                why = f"no flow: {wrong[0].path}: {wrong[0].message}"
                self._log.missing(self._location(agent.node.name), why)
            return []
        for agent in group:
            hosts = self._hosts.get(agent.node.name, ["HOST"])
            commands = "; ".join(f"flumeng node label {host} flume={name}" for host in hosts)
            self._log.mapped(self._location(agent.node.name), f"flow {name}: {commands}")
        return [(flow, group)]

    def _finished(
        self, flow: dict[str, Any], group: list[_Agent], findings: Iterable[Finding]
    ) -> ImportedFlow:
        names = [agent.node.name for agent in group]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        of = f"nodes {shown} of {group[0].file}"
        left = [
            f"{finding.place.file}:{finding.place.line}: {finding.place.subject}: {finding.message}"
            for finding in findings
            if finding.outcome == "not mapped" and finding.place.subject.partition(":")[0] in names
        ]
        head = f"Imported from Flume: {of}."
        return ImportedFlow(flow["flow"], of, to_text(flow, [head, *left]))


def _add(path: _Path, ends: Iterable[End]) -> None:
    existing = [end.to_yaml() for end in path.ends]
    for end in ends:
        if end.to_yaml() not in existing:
            existing.append(end.to_yaml())
            path.ends.append(end)


def _strength(promise: Mapping[str, str]) -> int:
    return ("memory", "spill", "disk").index(promise["durability"])


def _addresses(call: Call) -> list[str]:
    """Return the addresses to which a sink sends, as host:port."""
    if not call.args or call.name == "logicalSink" or call.name.startswith("auto"):
        return []
    if call.name.endswith("Chain"):
        texts = [call.text(number) for number in range(len(call.args))]
        return [text if ":" in text else f"{text}:{COLLECTOR_PORT}" for text in texts]
    return [f"{call.text(0)}:{call.text(1, COLLECTOR_PORT)}"]


def _port(source: Call) -> str:
    return source.text(0) or COLLECTOR_PORT


def _batch_seconds(path: _Path) -> int | None:
    per_sink = (draft.batch_seconds for draft in sinks_of(path.ends))
    asked = [seconds[0] for seconds in per_sink if seconds is not None]
    if path.seconds is not None:
        asked.append(path.seconds)
    return min(*asked, 86_400) if asked else None


def _prefix(names: Sequence[str]) -> str:
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _common(names: Sequence[str]) -> str:
    """Return the common beginning of node names, or the first name when it is too short."""
    if len(names) == 1:
        return names[0]
    shared = re.sub(r"[\d._-]+$", "", _prefix(names))
    return shared if len(shared) > 2 else names[0]
