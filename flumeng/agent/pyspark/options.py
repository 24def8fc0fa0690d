"""Options of the Spark data source for reading and for writing, given with ``option(...)``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from flumeng.control.commands.cursors import KEEP_SECONDS
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import UserError
from flumeng.platform.options.patterns import check_name
from flumeng.platform.options.problems import nearest
from flumeng.platform.options.texts import check_url
from zkschema.bootstrap import CURSOR_MAIN

KEEP_LEAST_SECONDS = 60.0
EVENTS_PER_BATCH = 1_000_000
RETRY_SECONDS = 300.0
NAMES = (
    "zookeeper",
    "flow",
    "cursor",
    "startFrom",
    "keepSeconds",
    "maxEventsPerBatch",
    "failOnDataLoss",
)
WRITE_NAMES = ("zookeeper", "flow", "url", "tokenFile", "ca", "writeId", "retrySeconds")
SPARKS = ("checkpointlocation", "path")
"""Options that Spark passes on to each writer, in lower case."""


@dataclass(frozen=True)
class Options:
    """Parsed options. ``cursor`` is empty for a reader without a cursor. ``columns``: to read."""

    zookeeper: str
    flow: str
    cursor: str = ""
    start_from: Literal["earliest", "latest"] = "earliest"
    keep_seconds: float = KEEP_SECONDS
    max_events: int = EVENTS_PER_BATCH
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = tuple(READ_SCHEMA.names)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Parse the options; their names may be in any case. Raises UserError."""
        values = _spelled(given, NAMES)
        zookeeper = _zookeeper(values)
        if not values.get("flow"):
            raise UserError('option("flow", ...) is missing: name the flow to read')
        start_from = values.get("startFrom", "earliest")
        if start_from not in ("earliest", "latest"):
            raise UserError(f"startFrom is earliest or latest, not {start_from!r}")
        cursor = values.get("cursor", "")
        if cursor == CURSOR_MAIN:
            raise UserError(
                f"a cursor cannot be {CURSOR_MAIN}, as that is the main one: choose another name"
            )
        fail = values.get("failOnDataLoss", "true").lower()
        if fail not in ("true", "false"):
            raise UserError(f"failOnDataLoss is true or false, not {values['failOnDataLoss']!r}")
        return cls(
            zookeeper=zookeeper,
            flow=_name("flow", values["flow"]),
            cursor=_name("cursor", cursor) if cursor else "",
            start_from=cast("Literal['earliest', 'latest']", start_from),
            keep_seconds=_number(values, "keepSeconds", KEEP_SECONDS, KEEP_LEAST_SECONDS),
            max_events=int(_number(values, "maxEventsPerBatch", EVENTS_PER_BATCH, 1)),
            fail_on_data_loss=fail == "true",
        )


@dataclass(frozen=True)
class WriteOptions:
    """Parsed options of a writer. ``urls``: given targets; without them the flow's are looked up.
    ``write_id``: the prefix of event ids, empty for a random one."""

    zookeeper: str = ""
    flow: str = ""
    urls: tuple[str, ...] = ()
    token_file: str = ""
    ca: str = ""
    write_id: str = ""
    retry_seconds: float = RETRY_SECONDS

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Parse the options; their names may be in any case. Raises UserError."""
        own = {name: value for name, value in given.items() if name.lower() not in SPARKS}
        values = _spelled(own, WRITE_NAMES)
        urls = tuple(url.strip() for url in values.get("url", "").split(",") if url.strip())
        for url in urls:
            try:
                check_url(url)
            except ValueError as error:
                raise UserError(f"option url {url!r}: {error}") from error
        if not urls and not values.get("flow"):
            raise UserError('option("flow", ...) is missing: name the flow to write into')
        return cls(
            zookeeper="" if urls else _zookeeper(values),
            flow=_name("flow", values["flow"]) if values.get("flow") else "",
            urls=urls,
            token_file=values.get("tokenFile", ""),
            ca=values.get("ca", ""),
            write_id=_name("writeId", values["writeId"]) if values.get("writeId") else "",
            retry_seconds=_number(values, "retrySeconds", RETRY_SECONDS, 1),
        )


def _spelled(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    spelled = {name.lower(): name for name in names}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in spelled:
            raise UserError(f'there is no option "{name}"; {nearest(name, list(names))}')
        values[spelled[name.lower()]] = str(value)
    return values


def _zookeeper(values: Mapping[str, str]) -> str:
    zookeeper = values.get("zookeeper") or os.environ.get("FLUMENG_ZK", "")
    if not zookeeper:
        raise UserError('option("zookeeper", "host:port/chroot") is missing, as for --zk')
    return zookeeper


def _name(option: str, text: str) -> str:
    try:
        check_name(text)
    except ValueError as error:
        raise UserError(f"option {option} {text!r}: {error}") from error
    return text


def _number(values: Mapping[str, str], name: str, default: float, least: float) -> float:
    try:
        number = float(values.get(name, default))
    except ValueError as error:
        raise UserError(f"option {name} is a number, not {values[name]!r}") from error
    if not least <= number < float("inf"):
        raise UserError(f"option {name} is {least:g} or more, not {values[name]}")
    return number
