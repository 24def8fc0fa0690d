"""The reference page of the flow language, derived from the option classes and the registry."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from flumeng.spec import registry
from flumeng.spec.branch import Branch
from flumeng.spec.client_tls import ClientTls
from flumeng.spec.component import Component
from flumeng.spec.flow import (
    Batch,
    CollectPlace,
    FlowSpec,
    IngestPlace,
    JournalOptions,
    Lag,
    TaskRange,
)
from flumeng.spec.http_poll_source import HttpAuth, OAuth2, Paging, TrackField
from flumeng.spec.journal_encryption import JournalEncryption
from flumeng.spec.kafka_journal import KafkaJournal
from flumeng.spec.locations import Credentials
from flumeng.spec.multiline import Multiline
from flumeng.spec.option import Option, Unit, default_of, described, is_required
from flumeng.spec.polls import Answers, Schedule
from flumeng.spec.registry import Entry
from flumeng.spec.replicas import Replicas
from flumeng.spec.senders import PeerLimits, SenderAuth
from flumeng.spec.server_tls import Tls
from flumeng.spec.sinks.files import Roll
from flumeng.spec.sql_poll_source import TrackColumn
from flumeng.spec.tables import Jdbc, LookupTable

HEAD = """\
Every option of a flow file and of every component. Sizes are written as `64 KiB` or `1 MiB` (or
`KB`, `MB`), durations as `250 ms`, `10 s` or `5 min`; a bare number means bytes or seconds.
"""
PARTS: tuple[tuple[str, type[Any]], ...] = (
    ("place.ingest", IngestPlace),
    ("place.collect", CollectPlace),
    ("tasks", TaskRange),
    ("replicas", Replicas),
    ("journal", JournalOptions),
    ("journal.kafka", KafkaJournal),
    ("journal.encryption", JournalEncryption),
    ("multiline", Multiline),
    ("lag", Lag),
    ("batch", Batch),
    ("branches", Branch),
    ("tls", Tls),
    ("auth of http", SenderAuth),
    ("per_peer", PeerLimits),
    ("credentials", Credentials),
    ("roll", Roll),
    ("tls of sinks", ClientTls),
    ("schedule", Schedule),
    ("answers", Answers),
    ("auth of http_poll", HttpAuth),
    ("oauth2", OAuth2),
    ("paging", Paging),
    ("track of http_poll", TrackField),
    ("table of lookup", LookupTable),
    ("jdbc", Jdbc),
    ("track of sql_poll", TrackColumn),
)
_UNITS: Mapping[Unit | None, tuple[tuple[str, float], ...]] = {
    "bytes": (("MiB", 2**20), ("KiB", 2**10), ("B", 1)),
    "seconds": (("d", 86400), ("h", 3600), ("s", 1), ("ms", 0.001)),
}
_UNIT_NAMES = {
    "bytes": "size",
    "seconds": "duration",
    "events": "number of events",
    "ratio": "ratio",
}


def to_markdown() -> str:
    """The page without its title; equal as long as the options are."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def to_page(cls: type[Any], parts: Sequence[tuple[str, type[Any]]] = ()) -> str:
    """The page of one option class that has a file of its own, without its title; ``parts`` are the
    classes of options in it, each with its place."""
    lines = [_doc(cls), "", *_options(cls)]
    for place, part in parts:
        lines += [f"## `{place}`\n", f"{_doc(part)}\n", *_options(part)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## The flow\n"
    yield from _options(FlowSpec)
    for name, part in PARTS:
        yield f"### `{name}`\n"
        yield f"{_doc(part)}\n"
        yield from _options(part)
    for kind in ("source", "filter", "sink"):
        yield f"## {kind.capitalize()}s\n"
        for entry in registry.entries(kind):
            yield from _component(entry)


def _component(entry: Entry) -> Iterator[str]:
    cls = entry.options_class()
    yield f"### {entry.kind} `{entry.name}`\n"
    yield f"{_doc(cls)}\n"
    if entry.guarantees:
        yield f"Guarantees: {', '.join(sorted(entry.guarantees))}.\n"
    bare = getattr(cls, "bare", None)
    if bare is not None:
        option = next(described(f) for f in dataclasses.fields(cls) if f.name == bare)
        if get_origin(get_type_hints(cls)[bare]) is Mapping:
            yield f"Written as `- {entry.name}: {option.example}`. {option.doc}\n"
            return
        yield f"Short form: `- {entry.name}: {option.example}`.\n"
    yield from _options(cls)


def _options(cls: type[Any]) -> Iterator[str]:
    fields = dataclasses.fields(cls)
    if not fields:
        yield "It has no options.\n"
        return
    hints = get_type_hints(cls)
    yield "| option | value | default | meaning |"
    yield "|---|---|---|---|"
    for field in fields:
        option = described(field)
        meaning = option.doc
        if option.example:
            meaning += f" Example: `{option.example}`."
        default = "required" if is_required(field) else _default(default_of(field), option)
        cells = (f"`{field.name}`", _value(hints[field.name], option), default, meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _value(hint: Any, option: Option) -> str:
    if isinstance(hint, types.UnionType):
        wanted = [arg for arg in get_args(hint) if arg is not type(None)]
        return ", or ".join(_value(arg, option) for arg in wanted)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) is tuple:
        (item, _) = get_args(hint)
        if dataclasses.is_dataclass(item):
            return "list of components" if item is Component else "list, see below"
        return "list of numbers" if item is int else "list of texts"
    if get_origin(hint) is Mapping:
        (_, item) = get_args(hint)
        if dataclasses.is_dataclass(item):
            return "by name, see below"
        if get_origin(item) is tuple:
            return "lists of texts by name"
        return "texts by name" if item is str else "numbers by name"
    if dataclasses.is_dataclass(hint):
        return "see below"
    if hint is bool:
        return "`true` or `false`"
    if hint in (int, float):
        return f"{_UNIT_NAMES[option.unit] if option.unit else 'number'}{_bounds(option)}"
    return "text"


def _bounds(option: Option) -> str:
    return f", {_quantity(option.minimum, option)} to {_quantity(option.maximum, option)}"


def _default(value: Any, option: Option) -> str:
    if value is None:
        return "none"
    if value in ("", (), {}) or dataclasses.is_dataclass(value):
        return "empty"
    if isinstance(value, tuple):
        return f"`{', '.join(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{_quantity(value, option)}`"


def _quantity(value: Any, option: Option) -> str:
    for unit, factor in _UNITS.get(option.unit, ()):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:_}" if isinstance(value, int) else str(value)


def _doc(cls: type[Any]) -> str:
    return inspect.cleandoc(cls.__doc__ or "")
