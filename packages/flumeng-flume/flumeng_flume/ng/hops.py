"""Hops between agents over Avro or Thrift, which are not needed when both ends are imported."""

from __future__ import annotations

from collections.abc import Sequence

from flumeng_flume.findings import Log
from flumeng_flume.ng import sinks, sources
from flumeng_flume.ng.agents import Agent, Part

RPC = ("avro", "thrift")
Receiver = tuple[str, str, str]
"""The names of a file, an agent and a source."""


def receiver(agent: Agent, source: Part) -> Receiver:
    return agent.file, agent.name, source.name


class Hops:
    """Finds the sources to which sinks send. ``reached`` are sources fed by imported agents: their
    sinks are those of the senders' flows."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents
        self.reached: set[Receiver] = set()
        targets = (
            self.target(agent, part) for agent in agents for part in agent.parts["sinks"].values()
        )
        self.targets = frozenset(receiver(*target) for target in targets if target is not None)

    def target(self, agent: Agent, part: Part) -> tuple[Agent, Part] | None:
        """Return the other agent's source to which a sink sends, if there is exactly one."""
        kind, port = sinks.kind_of(part.type), part.get("port")
        if kind not in RPC or not port:
            return None
        fitting = [
            (other, source)
            for other in self._agents
            for source in other.parts["sources"].values()
            if other is not agent
            and sources.kind_of(source.type) == kind
            and source.get("port") == port
        ]
        host = part.get("hostname", part.get("host"))
        exact = [
            candidate
            for candidate in fitting
            if candidate[1].get("bind", candidate[1].get("host")) == host
        ]
        fitting = exact or fitting
        return fitting[0] if len(fitting) == 1 else None

    def leave_out(self, sink: Part, agent: Agent, source: Part, log: Log) -> None:
        """Leave out a hop: the events that the sink sends to this agent stay in their flow."""
        self.reached.add(receiver(agent, source))
        log.mapped(
            sink.type_location,
            f"the hop to {source.agent}.sources.{source.name} is not needed any more",
        )
        for part in (sink, source):
            for setting in part.settings.values():
                if not log.has(setting.location):
                    log.mapped(setting.location, "the hop is not needed any more")
