"""The reference page of the flow language, derived from the option classes and the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from flumeng.config import registry
from flumeng.config.branch import Branch
from flumeng.config.client_tls import ClientTls
from flumeng.config.flow import (
    Batch,
    CollectPlace,
    FlowSpec,
    IngestPlace,
    JournalOptions,
    Lag,
    TaskRange,
)
from flumeng.config.http_poll_source import HttpAuth, OAuth2, Paging, TrackField
from flumeng.config.journal_encryption import JournalEncryption
from flumeng.config.kafka_journal import KafkaJournal
from flumeng.config.multiline import Multiline
from flumeng.config.option_docs import documentation, option_rows
from flumeng.config.polls import Answers, Schedule
from flumeng.config.registry import Entry
from flumeng.config.replicas import Replicas
from flumeng.config.senders import PeerLimits, SenderAuth
from flumeng.config.server_tls import Tls
from flumeng.config.sinks.files import Roll
from flumeng.config.sql_poll_source import TrackColumn
from flumeng.config.tables import Jdbc, LookupTable
from flumeng.platform.options.locations import Credentials
from flumeng.platform.options.option import described

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


def to_markdown() -> str:
    """The page without its title; equal as long as the options are."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def to_page(cls: type[Any], parts: Sequence[tuple[str, type[Any]]] = ()) -> str:
    """The page of one option class that has a file of its own, without its title; ``parts`` are the
    classes of options in it, each with its place."""
    lines = [documentation(cls), "", *_options(cls)]
    for place, part in parts:
        lines += [f"## `{place}`\n", f"{documentation(part)}\n", *_options(part)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## The flow\n"
    yield from _options(FlowSpec)
    for name, part in PARTS:
        yield f"### `{name}`\n"
        yield f"{documentation(part)}\n"
        yield from _options(part)
    for kind in ("source", "filter", "sink"):
        yield f"## {kind.capitalize()}s\n"
        for entry in registry.entries(kind):
            yield from _component(entry)


def _component(entry: Entry) -> Iterator[str]:
    cls = entry.options_class()
    yield f"### {entry.kind} `{entry.name}`\n"
    yield f"{documentation(cls)}\n"
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
    rows = list(option_rows(cls))
    if not rows:
        yield "It has no options.\n"
        return
    yield "| option | value | default | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        cells = (f"`{row.name}`", row.value, row.default, row.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
