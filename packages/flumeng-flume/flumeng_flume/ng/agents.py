"""The agents of a properties file: their components, with the properties of each.

A key is ``AGENT.KINDS = names`` or ``AGENT.KINDS.NAME.PROPERTY = value``. Of a repeated key the
last one counts. A component that its agent does not list is not used, as in Flume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flumeng.platform.errors import UserError
from flumeng_flume.answers import Setting
from flumeng_flume.findings import Location, Log
from flumeng_flume.ng import properties

KINDS = ("sources", "channels", "sinks", "sinkgroups", "configfilters")
_VARIABLE = re.compile(r"\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_.]*)\}")
_FILTERED = re.compile(r"\$\{(?P<filter>[^\[\]{}]+)\[\s*[\"']?(?P<name>[^\"'\]]+)[\"']?\s*\]\}")


@dataclass
class Part:
    """A component of an agent; ``kind`` is the word in its keys."""

    agent: str
    kind: str
    name: str
    location: Location
    settings: dict[str, Setting] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return self.get("type")

    @property
    def type_location(self) -> Location:
        setting = self.settings.get("type")
        return setting.location if setting else self.location

    def get(self, name: str, otherwise: str = "") -> str:
        setting = self.settings.get(name)
        return setting.value if setting else otherwise

    def first(self, *names: str) -> Setting | None:
        """Return the first of these properties that is set."""
        return next((self.settings[name] for name in names if name in self.settings), None)

    def under(self, prefix: str) -> dict[str, Setting]:
        """Return the properties whose names begin with ``prefix``, by the rest of their names."""
        length = len(prefix)
        return {
            name[length:]: setting
            for name, setting in self.settings.items()
            if name.startswith(prefix)
        }


@dataclass
class Agent:
    """An agent with the components that it lists, by kind and name."""

    name: str
    file: str
    parts: dict[str, dict[str, Part]] = field(default_factory=lambda: {kind: {} for kind in KINDS})


def read(
    file: str, text: str, environment: Mapping[str, str], log: Log, only: str | None = None
) -> list[Agent]:
    """Return the agents of a file, or only that named ``only``, if any. Raises ``UserError`` when
    they have neither sources nor channels."""
    if "\0" in text:
        raise UserError(f"{file}: is no text")
    entries = list(properties.read(text))
    if only is not None:
        entries = [entry for entry in entries if entry.key.strip().partition(".")[0] == only]
        if not entries:
            return []
    settings = _settings(file, entries, environment, log)
    agents: dict[str, Agent] = {}
    for key, setting in settings.items():
        agent, _, kind = key.partition(".")
        if kind in KINDS and agent:
            made = agents.setdefault(agent, Agent(agent, file))
            for name in setting.value.split():
                made.parts[kind].setdefault(name, Part(agent, kind, name, setting.location))
            if kind != "sources" or not setting.value:
                log.mapped(setting.location, "the components that are used")
    for key, setting in settings.items():
        _file_in(key, setting, agents, log)
    if not any(agent.parts["sources"] or agent.parts["channels"] for agent in agents.values()):
        if agents:
            named = ", ".join(agents)
            raise UserError(
                f"{file}: no agent of Flume NG found: the lists of sources and channels of {named} "
                "are empty"
            )
        raise UserError(
            f"{file}: no agent of Flume NG found: expected lines like `a1.sources = r1`"
        )
    return list(agents.values())


def _settings(
    file: str, entries: Sequence[properties.Entry], environment: Mapping[str, str], log: Log
) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    filters = {
        entry.key.strip().split(".")[-2]
        for entry in entries
        if re.fullmatch(r"[^.]+\.configfilters\.[^.]+\.type", entry.key.strip())
        and entry.value.strip().lower() == "env"
    }
    for entry in entries:
        key, raw = entry.key.strip(), entry.value.strip()
        location = Location(file, entry.line, key)
        if entry.damage:
            log.missing(location, entry.damage)
        if key in settings:
            log.differs(settings[key].location, f"replaced by line {entry.line}, as in Flume")
        settings[key] = Setting(location, _resolved(raw, environment, filters, location, log), raw)
    return settings


def _resolved(
    raw: str, environment: Mapping[str, str], filters: set[str], location: Location, log: Log
) -> str:
    """Return a value with known variables filled in, except in secrets."""

    def value(match: re.Match[str]) -> str:
        text = environment.get(match["name"])
        if text is None:
            return match[0]
        log.differs(location, f"the present value of {match['name']} is written into the flow")
        return text

    def filtered(match: re.Match[str]) -> str:
        return value(match) if match["filter"] in filters else match[0]

    if re.search(r"password|passphrase|secret|token|jaas", location.subject, re.IGNORECASE):
        return raw
    return _FILTERED.sub(filtered, _VARIABLE.sub(value, raw))


def _file_in(key: str, setting: Setting, agents: Mapping[str, Agent], log: Log) -> None:
    agent_name, _, rest = key.partition(".")
    kind, _, rest = rest.partition(".")
    name, _, property_name = rest.partition(".")
    agent = agents.get(agent_name)
    if not rest and kind in KINDS and agent_name:
        return
    if agent is None or kind not in KINDS or not property_name:
        log.missing(setting.location, "no property of a component of an agent")
        return
    part = agent.parts[kind].get(name)
    if part is None:
        log.mapped(
            setting.location,
            f"nothing to set: {agent_name}.{kind} does not name {name}, so Flume does not use it",
        )
    elif not setting.value:
        log.mapped(setting.location, "nothing to set: has no value, so Flume does not use it")
    else:
        part.settings[property_name] = setting
