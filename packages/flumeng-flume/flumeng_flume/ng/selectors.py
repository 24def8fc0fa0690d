"""Channel selectors: they choose the channels for each event of a source.

A multiplexing selector becomes branches, one for all channels that get the same events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flumeng_flume.answers import Setting
from flumeng_flume.drafts import End, Fork, Way, label, refused, segment
from flumeng_flume.findings import Log
from flumeng_flume.groups import NoGroupError, grouped
from flumeng_flume.ng.agents import Part
from flumeng_flume.stream import Stream, quoted

Channels = Mapping[str, list[End]]
"""The sinks of each channel."""
_ALL = "every sink of the flow gets every event"
CLASSES = {
    "org.apache.flume.channel.replicatingchannelselector": "replicating",
    "org.apache.flume.channel.multiplexingchannelselector": "multiplexing",
    "org.apache.flume.channel.loadbalancingchannelselector": "load_balancing",
}


def apply(parts: Sequence[Part], channels: Channels, stream: Stream, log: Log) -> list[End]:
    """Return the sinks of sources with one selector. Adds a column that it needs to ``stream``."""
    everything = [end for ends in channels.values() for end in ends]
    selectors = [part.under("selector.") for part in parts]
    if not selectors:
        return everything
    kind = selectors[0].get("type")
    name = kind.value.strip().lower() if kind is not None else "replicating"
    name = CLASSES.get(name, name)
    if name == "multiplexing":
        why: Fork | str
        try:
            why = _fork(parts[0], selectors[0], channels, stream)
        except ValueError as error:
            why = str(error)
        if isinstance(why, Fork):
            _report_fork(selectors, log)
            return [why]
        _report_missing(selectors, f"{why}; {_ALL}", log)
    elif name == "load_balancing":
        return _in_turns(parts[0], selectors, channels, stream, log)
    elif name == "replicating":
        _report_replicating(selectors, log)
    else:
        _report_missing(selectors, f"flumeng does not know it: {_ALL}", log)
    return everything


def _in_turns(
    part: Part,
    selectors: Sequence[Mapping[str, Setting]],
    channels: Channels,
    stream: Stream,
    log: Log,
) -> list[End]:
    ways = list({repr(segment(ends)): ends for ends in channels.values() if ends}.values())
    filters = () if stream.kafka else stream.filters
    merged = [end for ends in channels.values() for end in ends]
    if len(ways) > 1:
        try:
            merged = [grouped("one_of", ways, part.location, filters, log)]
        except NoGroupError as why:
            _report_missing(selectors, f"{why}: {_ALL}", log)
            return merged
    for settings in selectors:
        for key, setting in settings.items():
            if key == "policy" and setting.value.lower() != "round_robin":
                log.differs(setting.location, "the sinks of its channels take turns")
            elif key in ("type", "policy"):
                log.mapped(setting.location, "the sinks of its channels take turns")
            else:
                log.missing(setting.location, "unknown property of a selector")
    return merged


def _fork(part: Part, settings: Mapping[str, Setting], channels: Channels, stream: Stream) -> Fork:
    """Return branches by the values of a header. Raises ValueError."""
    header = settings["header"].value if "header" in settings else "flume.selector.header"
    column = stream.header(header)
    if column is None:
        raise ValueError(f"unknown header {header}")
    values: dict[str, list[str]] = {name: [] for name in channels}
    mapped: dict[str, None] = {}
    for key, setting in settings.items():
        kind, _, value = key.partition(".")
        if kind in ("mapping", "optional") and value:
            mapped[value] = None
            for name in setting.value.split():
                values.setdefault(name, []).append(value)
    default = settings["default"].value.split() if "default" in settings else []
    same: dict[str, list[str]] = {}
    for name, ends in channels.items():
        if ends:
            same.setdefault(repr(segment(ends)), []).append(name)
    ways: dict[tuple[tuple[str, ...], bool], Way] = {}
    for names in same.values():
        header_values = tuple(dict.fromkeys(value for name in names for value in values[name]))
        key_of = (header_values, any(name in default for name in names))
        if key_of != ((), False):
            way = ways.setdefault(key_of, Way(label(names[0]) or "channel", []))
            way.ends += channels[names[0]]
    if not ways:
        raise ValueError("it names no channel of the source")
    _set_conditions(ways, column, tuple(mapped), stream)
    rest = [way for way in ways.values() if way.otherwise]
    return Fork(
        [*(way for way in ways.values() if not way.otherwise), *rest],
        settings["type"].location if "type" in settings else part.location,
    )


def _set_conditions(
    ways: Mapping[tuple[tuple[str, ...], bool], Way],
    column: str,
    mapped: tuple[str, ...],
    stream: Stream,
) -> None:
    names: set[str] = set()
    mixed = any(values and is_default for values, is_default in ways)
    for (values, is_default), way in ways.items():
        while way.name in names:
            way.name += "-2"
        names.add(way.name)
        if is_default and not values and not mixed and len(ways) > 1:
            way.otherwise = True
            continue
        conditions = [_is_one_of(column, values, stream)] if values else []
        if is_default and mapped:
            conditions.append(f"{column} IS NULL OR NOT ({_is_one_of(column, mapped, stream)})")
        way.when = " OR ".join(conditions) or None


def _is_one_of(column: str, values: Sequence[str], stream: Stream) -> str:
    listed = ", ".join(map(quoted, values))
    for text in (column, f"CAST({column} AS STRING)"):
        condition = f"{text} IN ({listed})"
        why = refused([*stream.filters, {"where": condition}], kafka=stream.kafka)
        if why is None:
            return condition
    raise ValueError(str(why))


def _report_fork(selectors: Sequence[Mapping[str, Setting]], log: Log) -> None:
    for settings in selectors:
        for key, setting in settings.items():
            if key.startswith("optional."):
                log.differs(setting.location, "branches: none is optional, the flow waits for each")
            else:
                log.mapped(setting.location, "branches")


def _report_missing(selectors: Sequence[Mapping[str, Setting]], why: str, log: Log) -> None:
    for settings in selectors:
        for setting in settings.values():
            log.missing(setting.location, why)


def _report_replicating(selectors: Sequence[Mapping[str, Setting]], log: Log) -> None:
    for settings in selectors:
        for key, setting in settings.items():
            if key == "type":
                log.mapped(setting.location, "each sink gets every event")
            elif key == "optional":
                log.differs(
                    setting.location,
                    "none is optional: the flow waits for a sink that is away, and loses nothing",
                )
            else:
                log.missing(setting.location, "unknown property of a selector")
