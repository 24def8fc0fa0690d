"""The policy of a node: a file on its disk that limits flows there. A flow that exceeds it fails on
that node with the reason; other flows run."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from flumeng.config import Component, registry
from flumeng.config.component import Declared
from flumeng.config.decode import decode
from flumeng.config.document import compose
from flumeng.config.spark import SparkOptions, check_conf
from flumeng.platform.errors import UserError
from flumeng.platform.options.locations import place_of
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import (
    NETWORK_SCHEMES,
    SECRET,
    check_lake_path,
    check_name,
    check_target,
    fixed_part,
    split_query,
)
from flumeng.platform.options.problems import SpecError, nearest
from flumeng.platform.options.quantities import LINK_RATES, check_absolute, check_address
from flumeng.platform.options.texts import FILE_FORMATS, check_format, check_module
from flumeng.platform.secrets import SecretBackend
from flumeng.platform.security.identity import NAME
from flumeng.platform.security.signing import check_signer

DEFAULT_FILE = Path("/etc/flumeng/node.yaml")
_ANY_MORE = "*"
_ANYWHERE = "*"
_WILDCARDS = set("*?[")
_SOURCES = tuple(entry.name for entry in registry.entries("source"))


def check_source(text: str) -> None:
    if text not in _SOURCES:
        raise ValueError(f"expected the name of a source; {nearest(text, _SOURCES)}")


def check_listen(text: str) -> None:
    host, _, ports = text.rpartition(":")
    for port in ports.split("-", 1):
        try:
            check_address(f"{'0.0.0.0' if host == '*' else host}:{port}")
        except ValueError:
            raise ValueError(
                'expected host:port, like "*:5514" or "127.0.0.1:1024-65535"'
            ) from None


def check_command(text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"expected a command line: {error}") from error
    if not words or not words[0].startswith("/"):
        raise ValueError('expected a command line with an absolute path, like "/usr/bin/df -P"')


def check_output(text: str) -> None:
    if text != _ANYWHERE:
        if text.partition("://")[0] in NETWORK_SCHEMES:
            check_target(text)
            return
        check_lake_path(text)
        if fixed_part(text) != text:
            raise ValueError("expected a directory or URL without patterns")


def check_secret(text: str) -> None:
    if not SECRET.fullmatch(f"${{secret:{text}}}"):
        raise ValueError("expected the NAME of ${secret:NAME}: letters, digits, _ and -")


def check_tapped(text: str) -> None:
    if text != _ANYWHERE:
        check_name(text)


def check_subscribed(text: str) -> None:
    if text != _ANYWHERE and not NAME.fullmatch(text):
        raise ValueError("expected the name of a flow, or * for all, of a subscriber's certificate")


def check_bound(text: str) -> None:
    if not text or _WILDCARDS & set(text.removesuffix("*")):
        raise ValueError("expected a text, or the beginning of one with a * after it")


def check_conf_bound(text: str) -> None:
    beginning = text.removesuffix("*")
    check_conf(f"{beginning}any" if beginning.endswith(".") else beginning)


@dataclass(frozen=True)
class SparkBounds:
    """Limits of the cluster's settings of Spark on this node: its collector runs the programs that
    they name. An entry that ends in `*` stands for all texts that begin with it, with the symlinks
    of directories resolved; it never stands for a path with `..`."""

    masters: tuple[str, ...] = option(
        doc="The masters that may be used, besides those of the node's own host; Spark Connect "
        "servers without the parameters of their URL.",
        check=check_bound,
        example='["spark://spark-1:7077", "k8s://*"]',
        default=(),
    )
    packages: tuple[str, ...] = option(
        doc="The Maven coordinates of packages that may be loaded.",
        check=check_bound,
        example='["org.postgresql:postgresql:*"]',
        default=(),
    )
    jars: tuple[str, ...] = option(
        doc="The jars that may be loaded.", check=check_bound, example='["/opt/jdbc/*"]', default=()
    )
    python: tuple[str, ...] = option(
        doc="The Pythons that executors may run; `python3` is always allowed.",
        check=check_bound,
        example='["/opt/data/bin/python3"]',
        default=(),
    )
    conf: tuple[str, ...] = option(
        doc="The further settings of Spark that are allowed. Those that name classes, options of "
        "Java or files can run anything.",
        check=check_conf_bound,
        default=(
            "spark.default.parallelism",
            "spark.dynamicAllocation.*",
            "spark.executor.instances",
            "spark.executor.memoryOverhead",
            "spark.network.timeout",
            "spark.speculation*",
            "spark.sql.adaptive.advisoryPartitionSizeInBytes",
            "spark.sql.adaptive.autoBroadcastJoinThreshold",
            "spark.sql.adaptive.coalescePartitions.*",
            "spark.sql.adaptive.enabled",
            "spark.sql.adaptive.localShuffleReader.enabled",
            "spark.sql.adaptive.skewJoin.*",
            "spark.sql.autoBroadcastJoinThreshold",
            "spark.sql.shuffle.partitions",
            "spark.task.maxFailures",
        ),
    )

    def require(self, options: SparkOptions) -> None:
        """Raise UserError for the first forbidden option."""
        if not options.local:
            self._require("masters", (options.place,))
        if options.python is not None:
            self._require("python", (options.python,))
        self._require("packages", options.packages)
        self._require("jars", options.jars)
        self._require("conf", tuple(options.conf))

    def _require(self, kind: str, texts: Sequence[str]) -> None:
        for text in texts:
            if not any(_begins(entry, text) for entry in getattr(self, kind)):
                raise UserError(
                    f"this node's policy file does not allow Spark's {text}: name it in "
                    f"`spark.{kind}` there"
                )


@dataclass(frozen=True)
class Subscriber:
    """A subscriber's readable flows on this node, and its limits at the node's gateway."""

    flows: tuple[str, ...] = option(
        doc="The flows that it may read; `*` for all.", check=check_subscribed, example="[web-logs]"
    )
    bytes_per_second: int | None = option(
        doc="The rate at which the gateway sends events to it, over all its streams.",
        unit="bytes",
        between=LINK_RATES,
        example="50 MB",
        default=None,
    )
    streams: int | None = option(
        doc="How many reads run at once; others wait.", between=(1, 1000), default=None
    )


@dataclass(frozen=True)
class Policy:
    """The limits of flows on this node. An option that is left out has the value that it has
    without a file."""

    sources: tuple[str, ...] = option(
        doc="The sources that may run.",
        check=check_source,
        example="[syslog, tail]",
        default=_SOURCES,
    )
    plugins: tuple[str, ...] = option(
        doc="The packages, beside flumeng's own, whose sources, filters and sinks may run; `*` for "
        "all that are installed.",
        example="[flumeng-mqtt]",
        default=(_ANYWHERE,),
    )
    paths: tuple[str, ...] = option(
        doc="The directories below which files may be read, with symlinks resolved: those of "
        "`tail` and of `tls`, and tables that are looked up.",
        check=check_absolute,
        example="[/var/log, /etc/flumeng/tls]",
        default=("/",),
    )
    listen: tuple[str, ...] = option(
        doc="The addresses to listen on: a host, or `*` for all, and a port or a range of ports.",
        check=check_listen,
        example='["*:5514", "127.0.0.1:1024-65535"]',
        default=("*:0-65535",),
    )
    commands: tuple[str, ...] = option(
        doc="The command lines that `exec` may run, word for word; `*` as the last word stands for "
        "any further arguments.",
        check=check_command,
        example='["/usr/bin/df -P", "/opt/probes/run *"]',
        default=(),
    )

    outputs: tuple[str, ...] = option(
        doc="The directories and URLs below which sinks may write: paths with symlinks resolved; "
        "URLs with their host or bucket and their query, letter by letter; `*` for anywhere.",
        check=check_output,
        example='[/data/lake, "s3a://lake/web", "hdfs://namenode:8020/logs"]',
        default=("*",),
    )
    inputs: tuple[str, ...] = option(
        doc="The URLs and databases from which tables for `lookup` and `sql` may be read, the "
        "brokers of the source `kafka`, and the URLs of `http_poll` with their port, written as "
        "in `outputs`. Tables on a disk are limited by `paths`.",
        check=check_output,
        example='["s3a://lake/apps", "postgresql://db.example/shop", "kafka://kafka-1.example:9092"]',
        default=("*",),
    )
    spark_formats: tuple[str, ...] = option(
        doc="The formats that the sink `spark` may write. `outputs` limits its paths, but not the "
        "options of formats other than Spark's own files.",
        check=check_format,
        example="[parquet, iceberg, jdbc]",
        default=FILE_FORMATS,
    )
    python: tuple[str, ...] = option(
        doc="The modules with functions that the filter and the sink `python` may call in the "
        "collector.",
        check=check_module,
        example="[company.sinks]",
        default=(),
    )
    tap: tuple[str, ...] = option(
        doc="The flows whose events people may look at with `flumeng flow tap` in the journals of "
        "this node; `*` for all, an empty list for none.",
        check=check_tapped,
        example="[web-logs]",
        default=("*",),
    )
    signers: tuple[str, ...] = option(
        doc="Run only flows whose current revision is signed with one of these keys, as `flumeng "
        "cluster secure signing-key` prints them. Without any, a revision needs no signature.",
        check=check_signer,
        example='["k1Wc6Vb0X0q3v0m5XJm2bq5z2mWl7y8lqk0T7v7M3dE="]',
        default=(),
    )
    subscribers: Mapping[str, tuple[str, ...] | Subscriber] = option(
        doc="The flows that subscribers may read on this node, by the name in their certificates; "
        "`*` for all. Those that are not named may read nothing. In a cluster without certificates "
        "everybody may read everything.",
        check=check_subscribed,
        example="{research: [web-logs], nyc: {flows: [web-logs], bytes_per_second: 50 MB}}",
        factory=dict,
    )
    journal_bytes: int | None = option(
        doc="The size limit of all journals of this node together on its disk; at the limit, "
        "senders wait. Each ingest worker has an equal part of it.",
        between=(2**26, 2**60),
        default=None,
    )

    secrets: Mapping[str, SecretBackend] = option(
        doc="Where this node finds the secrets to which flows refer by name. A secret that is not "
        "named here is the environment variable `FLUMENG_SECRET_NAME`, or the file `NAME` in the "
        "directory `FLUMENG_SECRETS`.",
        check=check_secret,
        example="{search: {file: /etc/flumeng/secrets/search}, kafka: {env: KAFKA_PASSWORD}}",
        factory=dict,
    )

    spark: SparkBounds = option(
        doc="The limits of the cluster's Spark settings on this node.", default=SparkBounds()
    )

    def require(self, part: Component[Declared]) -> None:
        """Raise UserError when a component needs more than the policy allows. Reads the disk."""
        if part.kind == "source" and part.name not in self.sources:
            raise UserError(f"this node's policy file does not allow the source {part.name}")
        package = registry.get(part.kind, part.name).distribution
        if package != registry.OWN and not {package, _ANYWHERE} & set(self.plugins):
            raise UserError(
                f"this node's policy file does not allow the {part.kind} {part.name} of the "
                f"package {package}: name it in `plugins` there"
            )
        for kind, what in part.options.needs():
            self._require(kind, what)

    def _require(self, kind: str, what: Any) -> None:
        if kind == "listen" and not any(_covers(entry, what) for entry in self.listen):
            raise UserError(f"this node's policy file does not allow to listen on {what}")
        if kind == "path" and not self.allows_file(_fixed_part(what)):
            raise UserError(f"this node's policy file does not allow to read {what}")
        if kind == "output":
            self.require_output(what)
        if kind == "input" and not _is_in(self.inputs, what):
            raise UserError(f"this node's policy file does not allow to read {place_of(what)}")
        if kind == "spark format" and what not in self.spark_formats:
            raise UserError(f"this node's policy file does not allow the format {what} of Spark")
        if kind == "python module" and what not in self.python:
            raise UserError(f"this node's policy file does not allow functions of {what}")
        if kind == "command" and not any(_matches(entry, what) for entry in self.commands):
            raise UserError(
                f"this node's policy file does not allow the command {shlex.join(what)}"
            )

    def require_output(self, uri: str) -> None:
        """Raise UserError when sinks may not write to ``uri``, with its symlinks resolved."""
        if not _is_in(self.outputs, uri):
            raise UserError(f"this node's policy file does not allow to write to {place_of(uri)}")

    def may_tap(self, flow: str) -> bool:
        return flow in self.tap or _ANYWHERE in self.tap

    def granted(self, subscriber: str) -> frozenset[str]:
        """Return the flows that a subscriber may read on this node; ``*`` for all."""
        return frozenset(self.subscriber(subscriber).flows)

    def subscriber(self, name: str) -> Subscriber:
        """Return a subscriber's rights and limits; one that is not named may read nothing."""
        found = self.subscribers.get(name, ())
        return found if isinstance(found, Subscriber) else Subscriber(found)

    def allows_file(self, path: str) -> bool:
        """Return whether the file at ``path``, with symlinks resolved, may be read."""
        real = os.path.realpath(path)
        return any(_is_below(real, os.path.realpath(root)) for root in self.paths)


UNRESTRICTED = Policy()


def find(given: Path | None) -> Path | None:
    """Return the given file, or else the default one if it exists."""
    return DEFAULT_FILE if given is None and DEFAULT_FILE.exists() else given


def load(path: Path | None) -> Policy:
    """Read a policy file. Without a file, the defaults of ``Policy`` hold: they forbid commands,
    Python functions, formats that are not Spark's own, subscribers with certificates, and most of
    ``SparkBounds``. Raises UserError."""
    if path is None:
        return UNRESTRICTED
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read the policy file {path}: {reason}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Policy:
    try:
        return decode(Policy, compose(text))
    except SpecError as error:
        lines = "\n".join(f"{name}: {problem}" for problem in error.problems)
        raise UserError(lines) from error


def _covers(entry: str, address: str) -> bool:
    host, _, ports = entry.rpartition(":")
    listen_host, _, port = address.rpartition(":")
    first, dash, last = ports.partition("-")
    if not int(first) <= int(port) <= int(last if dash else first):
        return False
    return host == "*" or _same_host(host) == _same_host(listen_host)


def _same_host(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower()


def _is_in(entries: Sequence[str], uri: str) -> bool:
    location = place_of(uri)
    return any(entry == _ANYWHERE or _holds(entry, location) for entry in entries)


def _holds(entry: str, uri: str) -> bool:
    (root, root_query), (path, query) = split_query(entry), split_query(uri)
    if ".." in path.split("/"):
        return False
    root, path = (text.removeprefix("file://").rstrip("/") or "/" for text in (root, path))
    if root.startswith("/") != path.startswith("/"):
        return False
    if path.startswith("/"):
        return _is_below(os.path.realpath(path), os.path.realpath(root))
    root, path = (re.sub("^s3[an]://", "s3://", text) for text in (root, path))
    return query == root_query and _is_below(path, root)


def _fixed_part(pattern: str) -> str:
    return "/".join(_until_wildcard(pattern.split("/"))) or "/"


def _until_wildcard(parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        if _WILDCARDS & set(part):
            return
        yield part


def _matches(entry: str, command: Sequence[str]) -> bool:
    words = shlex.split(entry)
    if words[-1] == _ANY_MORE and len(words) > 1:
        return list(command[: len(words) - 1]) == words[:-1]
    return list(command) == words


def _begins(entry: str, text: str) -> bool:
    if not entry.endswith("*"):
        return text == entry
    leads_out = ".." in unquote(text).replace("\\", "").split("/")
    return not leads_out and _resolved(text).startswith(_resolved(entry[:-1]))


def _resolved(text: str) -> str:
    """Resolve symlinks of a path's directory, not of the file; other texts are unchanged."""
    path = text.removeprefix("file://")
    if not path.startswith("/"):
        return text
    directory, _, name = path.rpartition("/")
    return f"{os.path.realpath(directory or '/').rstrip('/')}/{name}"


def _is_below(path: str, root: str) -> bool:
    return root in ("/", path) or path.startswith(root + "/")
