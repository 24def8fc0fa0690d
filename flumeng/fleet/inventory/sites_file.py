"""Reads ``sites.yaml``: sites, groups and waves. Pure."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from flumeng.config import document
from flumeng.config.decode import Decoder
from flumeng.fleet.inventory import Site
from flumeng.fleet.inventory.variables import check_name as check_variable
from flumeng.fleet.inventory.variables import fill
from flumeng.fleet.waves import Wave
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import SECRET, check_name
from flumeng.platform.options.problems import Problem, nearest
from flumeng.platform.options.quantities import check_address, whole_number
from flumeng.platform.options.windows import parse_window

MAX_BYTES = 4 * 2**20
MAX_NODES = 500_000

_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._:@=+-]+)+", re.ASCII)
_FAILURES = re.compile("([0-9]{1,4})(%?)", re.ASCII)


def check_connect_string(text: str) -> None:
    servers, _, chroot = text.partition("/")
    if not _CHROOT.fullmatch(f"/{chroot}"):
        raise ValueError("expected host:port[,host:port]/chroot, like zk1:2181,zk2:2181/flumeng")
    for server in servers.split(","):
        check_address(server)
        if server.rpartition(":")[2].strip("0") == "":
            raise ValueError("expected a port from 1 to 65535")


def clusters(connect_string: str) -> set[str]:
    """Return SERVER/CHROOT of each server; connect strings that share one are of one cluster."""
    servers, _, chroot = connect_string.partition("/")
    return {f"{server.lower()}/{chroot}" for server in servers.split(",")}


def check_time_zone(text: str) -> None:
    try:
        zoneinfo.ZoneInfo(text)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError("expected the name of a time zone, like Europe/Berlin") from error


def check_failures(text: str) -> None:
    form = _FAILURES.fullmatch(text)
    if form is None or (form[2] and int(form[1]) > 100):
        raise ValueError("expected a number of sites, or a share of the wave, like 10%")


def failures(text: str, sites: int) -> int:
    """Return how many sites of a wave may fail; a share is rounded down."""
    return sites * int(text[:-1]) // 100 if text.endswith("%") else int(text)


def check_parallel(text: str) -> None:
    try:
        if text == "all" or whole_number(text) >= 1:
            return
    except ValueError:
        pass
    raise ValueError('expected a number of sites from 1 on, or "all"')


def check_window(text: str) -> None:
    parse_window(text)


def _wrong_variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        if fill(value, {})[1]:
            yield f"variables.{name}", "a variable's value cannot hold variables"


@dataclass(frozen=True)
class GroupOptions:
    """Sites that have something in common."""

    variables: Mapping[str, str] = option(
        doc="Variables of the group's sites. A later group of a site overrides an earlier one.",
        factory=dict,
        check=check_variable,
        example="{region: eu}",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _wrong_variables(self.variables)


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """One data centre with a cluster of its own."""

    zookeeper: str = option(
        doc="The ZooKeeper servers of the site and the chroot of its cluster.",
        check=check_connect_string,
        example="zk1:2181,zk2:2181/flumeng",
    )
    groups: tuple[str, ...] = option(
        doc="The groups that the site is in, in the order in which their overlays are laid.",
        default=(),
        example="[eu, canary]",
    )
    zone: str = option(
        doc="The site's zone; the variable `${zone}`.", default="", example="eu-central"
    )
    labels: Mapping[str, str] = option(
        doc="Labels of the site, to select sites by.", factory=dict, example="{tier: one}"
    )
    time_zone: str = option(
        doc="The time zone of the windows of its wave.",
        default="UTC",
        check=check_time_zone,
        example="Europe/Berlin",
    )
    variables: Mapping[str, str] = option(
        doc="Variables of the site; they override those of its groups.",
        factory=dict,
        check=check_variable,
        example="{lake: /lake}",
    )
    credential: str = option(
        doc="The secret that holds `user:password` for the digest scheme of ZooKeeper.",
        default="",
        example="${secret:fra-zookeeper}",
    )
    connect: float = option(
        doc="How long to wait for a connection.", unit="seconds", between=(0.1, 600), default=10.0
    )
    turn: float = option(
        doc="The time limit of each read or change of the site.",
        unit="seconds",
        between=(1, 3600),
        default=60.0,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _wrong_variables(self.variables)
        if self.credential and not SECRET.fullmatch(self.credential):
            yield "credential", "expected a reference to a secret, like ${secret:fra-zookeeper}"


@dataclass(frozen=True, kw_only=True)
class WaveOptions:
    """Sites that are changed together."""

    wave: str = option(doc="The wave's name.", check=check_name, example="canary")
    groups: tuple[str, ...] = option(
        doc="The groups whose sites are in it.", default=(), example="[canary]"
    )
    sites: tuple[str, ...] = option(doc="Sites that are in it.", default=(), example="[fra]")
    rest: bool = option(doc="Takes all sites that are in no wave before.", default=False)
    parallel: str = option(
        doc="The number of sites changed at once, or `all`.", default="1", check=check_parallel
    )
    max_failures: str = option(
        doc="The most sites that may fail before the push stops after the wave: a number, or a "
        "share of the wave like `10%`, rounded down.",
        default="0",
        check=check_failures,
    )
    settle: float = option(
        doc="The time limit for a site to run its changes.",
        unit="seconds",
        between=(0, 86_400),
        default=300.0,
    )
    soak: float = option(
        doc="How long a site must then be no worse than before.",
        unit="seconds",
        between=(0, 86_400),
        default=0.0,
    )
    windows: tuple[str, ...] = option(
        doc="A site is begun only within one of these, in its own time zone.",
        default=(),
        check=check_window,
        example='["mon-fri 09:00-16:00"]',
    )


@dataclass(frozen=True, kw_only=True)
class SitesFile:
    """The sites of an inventory, and the order in which they are changed."""

    inventory: str = option(doc="The inventory's name.", check=check_name, example="production")
    variables: Mapping[str, str] = option(
        doc="Variables of all sites.", factory=dict, check=check_variable, example='{lake: "/lake"}'
    )
    groups: Mapping[str, GroupOptions] = option(
        doc="The groups by name.", factory=dict, check=check_name, example="{eu: {}}"
    )
    sites: Mapping[str, SiteOptions] = option(
        doc="The sites by name.", check=check_name, example='{fra: {zookeeper: "zk1:2181/flumeng"}}'
    )
    waves: tuple[WaveOptions, ...] = option(
        doc="The waves in their order; without any, all sites one after the other.",
        default=(),
        example="[{wave: all, rest: true}]",
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _wrong_variables(self.variables)
        if not self.sites:
            yield "sites", "expected at least one site"


@dataclass(frozen=True)
class Sites:
    """The content of the file. ``declared``: names of all groups and sites, even invalid ones."""

    name: str
    declared: Mapping[str, tuple[str, ...]]
    sites: Mapping[str, Site]
    waves: tuple[Wave, ...]
    problems: tuple[Problem, ...]


def read(root: yaml.Node) -> Sites:
    """Return the content of ``sites.yaml``, with its problems."""
    decoder = Decoder()
    file = decoder.mapping(SitesFile, root, "")
    top = document.items(root)
    declared = {part: tuple(document.items(top.get(part))) for part in ("groups", "sites")}
    options = {
        name: part
        for name in declared["sites"]
        if isinstance(part := decoder.parts.get(f"sites.{name}"), SiteOptions)
    }
    _check_sites(options, declared["groups"], decoder)
    count = len(top["waves"].value) if "waves" in top else 0
    parts = [decoder.parts.get(f"waves[{index}]") for index in range(count)]
    given = [part for part in parts if isinstance(part, WaveOptions)]
    waves = _waves(given, options, declared, decoder) if len(given) == count else ()
    if decoder.problems:
        return Sites("", declared, {}, (), tuple(decoder.problems))
    assert isinstance(file, SitesFile)
    sites = {name: _site(name, file) for name in file.sites}
    return Sites(file.inventory, declared, sites, waves, ())


def _site(name: str, file: SitesFile) -> Site:
    options = file.sites[name]
    given = [file.variables, *(file.groups[group].variables for group in options.groups)]
    variables = {key: value for each in [*given, options.variables] for key, value in each.items()}
    return Site(
        name=name,
        zookeeper=options.zookeeper,
        groups=options.groups,
        zone=options.zone,
        labels=options.labels,
        variables={key: fill(value, {})[0] for key, value in variables.items()},
        time_zone=options.time_zone,
        credential=options.credential,
        connect_seconds=options.connect,
        turn_seconds=options.turn,
    )


def _check_sites(sites: Mapping[str, SiteOptions], groups: Sequence[str], decoder: Decoder) -> None:
    first: dict[str, str] = {}
    for name, site in sites.items():
        _check_names(site.groups, groups, "group", f"sites.{name}.groups", decoder)
        servers = clusters(site.zookeeper)
        others = sorted({first[server] for server in servers if server in first})
        if others:
            message = f"this cluster already belongs to site {others[0]}"
            _report(decoder, f"sites.{name}.zookeeper", message)
        first.update({server: name for server in servers if server not in first})


def _check_names(
    names: Sequence[str], declared: Sequence[str], what: str, path: str, decoder: Decoder
) -> None:
    for index, name in enumerate(names):
        if name not in declared:
            hint = nearest(name, declared) if declared else f"there is no {what}"
            _report(decoder, f"{path}[{index}]", f'unknown {what} "{name}"; {hint}')
        elif name in names[:index]:
            _report(decoder, f"{path}[{index}]", f"{what} {name} is given twice")


def _waves(
    given: Sequence[WaveOptions],
    sites: Mapping[str, SiteOptions],
    declared: Mapping[str, Sequence[str]],
    decoder: Decoder,
) -> tuple[Wave, ...]:
    if not given:
        return (Wave("all", tuple(sites)),)
    waves: list[Wave] = []
    taken: dict[str, str] = {}
    for index, options in enumerate(given):
        path = f"waves[{index}]"
        _check_names(options.groups, declared["groups"], "group", f"{path}.groups", decoder)
        _check_names(options.sites, declared["sites"], "site", f"{path}.sites", decoder)
        if any(wave.name == options.wave for wave in waves):
            _report(decoder, f"{path}.wave", f"there is a wave {options.wave} already")
        named = {
            name
            for name, site in sites.items()
            if name in options.sites or set(site.groups) & set(options.groups)
        }
        for name in sorted(named & set(taken)):
            message = f"site {name} is in wave {taken[name]} already: remove it from one of them"
            _report(decoder, path, message)
        rest = set(sites) - set(taken) if options.rest else set()
        members = tuple(name for name in sites if name in named | rest)
        if not (options.groups or options.sites or options.rest):
            _report(decoder, path, 'has no sites: give "groups", "sites" or "rest: true"')
        taken.update({name: options.wave for name in members if name not in taken})
        waves.append(_wave(options, members))
    for name in sites:
        if name not in taken:
            message = 'is in no wave: add it to one, or add a last wave with "rest: true"'
            _report(decoder, f"sites.{name}", message)
    return tuple(waves)


def _wave(options: WaveOptions, members: tuple[str, ...]) -> Wave:
    every = options.parallel == "all"
    return Wave(
        name=options.wave,
        sites=members,
        parallel=max(len(members), 1) if every else whole_number(options.parallel),
        max_failures=failures(options.max_failures, len(members)),
        settle_seconds=options.settle,
        soak_seconds=options.soak,
        windows=tuple(map(parse_window, options.windows)),
    )


def _report(decoder: Decoder, path: str, message: str) -> None:
    decoder.problems.append(Problem(decoder.lines[path], path, message))
