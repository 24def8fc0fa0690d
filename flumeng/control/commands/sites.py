"""Other sites whose flows are read here, and this cluster's name among sites."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flumeng.config import SpecError, parse_flow
from flumeng.config.component import RemoteFlow
from flumeng.control.commands.lookup import current_revisions, found_by_name, require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import (
    ABSENT,
    Put,
    ReadableStore,
    Remove,
    Store,
    Versioned,
    Write,
    tree,
)
from flumeng.platform.errors import ConflictError, UnknownNameError, UserError
from flumeng.platform.options.patterns import check_name
from flumeng.platform.options.problems import nearest
from flumeng.platform.options.quantities import LINK_RATES, check_address
from flumeng.platform.options.windows import check_hours
from zkschema import paths
from zkschema.records import Site

MOST_GATEWAYS = 32
_FINGERPRINT = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class SiteRow:
    """A site with the flows that read from it. ``authority``: "" for an open cluster.
    ``bytes_per_second`` and ``at``: see ``records.Site``. ``failover``: its time in seconds since
    the epoch; None without one."""

    site: str
    gateways: tuple[str, ...]
    authority: str
    readers: tuple[str, ...]
    standby: tuple[str, ...] = ()
    failover: float | None = None
    bytes_per_second: int = 0
    at: str = ""


def name_cluster(operator: Operator, name: str) -> bool:
    """Set this cluster's name among sites; return whether it changed. Raises UserError, and
    ConflictError while flows read other sites: their leases there have the old name."""
    _check("the name of a site", check_name, name)
    store = operator.store
    tree.require(store)
    current = store.read(paths.cluster())
    if current is None:
        raise UserError("this chroot has no /cluster: run `flumeng schema init`")
    before = current.value.site
    if before == name:
        return False
    if before and (flows := sorted(readers(store))):
        raise ConflictError(
            f"the cluster is the site {before}, and other sites keep events for its flows "
            f"{', '.join(flows)} under that name: delete these first"
        )
    command = f"site name {name}" + (f" (was {before})" if before else "")
    named = Put(paths.cluster(), replace(current.value, site=name), current.version)
    operator.commit([*breaks_folder(store), named], command)
    return True


def breaks_folder(store: Store) -> list[Write]:
    """Return the write that makes the folder of broken leases, if it is missing."""
    return [] if store.exists(paths.all_breaks()) else [Put(paths.all_breaks(), None, ABSENT)]


def add_site(
    operator: Operator,
    name: str,
    gateways: Sequence[str],
    authority: str,
    *,
    bytes_per_second: int = 0,
    at: str = "",
    standby: Sequence[str] | None = None,
) -> bool:
    """Add a site, or change it; return whether that is a change. ``authority``: a SHA-256
    fingerprint, or "". ``bytes_per_second``, ``at``: limits of all flows that read it.
    ``standby``: flows that a failover starts; None: as before. Raises UserError, ConflictError."""
    site = checked_site(name, gateways, authority, bytes_per_second, at)
    store = operator.store
    tree.require(store)
    for flow in standby or ():
        require_flow(store, flow)
    flows = tuple(dict.fromkeys(standby or ()))
    site = replace(site, standby=flows)
    command = f"site add {name} {' '.join(site.gateways)}"
    found = store.read(paths.site(name))
    if found is not None:
        before = found.value
        after = replace(
            site,
            standby=before.standby if standby is None else flows,
            failover=before.failover,
            extra=before.extra,
        )
        return operator.change(paths.site(name), found, after, command)
    folder: list[Write] = []
    if not store.exists(paths.sites()):
        folder.append(Put(paths.sites(), None, ABSENT))
    operator.commit([*folder, Put(paths.site(name), site, ABSENT)], command)
    return True


def checked_site(
    name: str, gateways: Sequence[str], authority: str, bytes_per_second: int = 0, at: str = ""
) -> Site:
    """Return the record of a site. Raises UserError for a wrong name, address, fingerprint or
    limit."""
    _check("the name of a site", check_name, name)
    if not 0 < len(gateways) <= MOST_GATEWAYS:
        raise UserError(f"give 1 to {MOST_GATEWAYS} gateways, HOST:PORT each")
    for address in gateways:
        _check(f"gateway {address!r}", check_address, address)
    if at:
        _check("--at", check_hours, at)
    least, most = LINK_RATES
    if bytes_per_second and not least <= bytes_per_second <= most:
        raise UserError(f"give a rate of {least} to {most} bytes per second")
    digits = authority.replace(":", "").lower()
    if digits and not _FINGERPRINT.fullmatch(digits):
        raise UserError(
            "an authority is the SHA-256 fingerprint of a certificate, 64 hexadecimal digits: "
            "openssl x509 -noout -fingerprint -sha256 -in ca.pem"
        )
    return Site(
        gateways=tuple(dict.fromkeys(gateways)),
        authority=digits,
        bytes_per_second=bytes_per_second,
        at=at,
    )


def remove_site(operator: Operator, name: str) -> None:
    """Remove a site. Raises UserError for an unknown one, ConflictError while flows read it."""
    store = operator.store
    found = require_site(store, name)
    flows = sorted(flow for flow, site in readers(store).items() if site == name)
    if flows:
        raise ConflictError(f"site {name} is read by {', '.join(flows)}: delete these flows first")
    operator.commit([Remove(paths.site(name), found.version)], f"site remove {name}")


def require_site(store: ReadableStore, name: str) -> Versioned[Site]:
    found = store.read(paths.site(name)) if name in _names(store) else None
    if found is None:
        names = _names(store)
        hint = nearest(name, names) if names else "there are no sites: `flumeng site add`"
        raise UnknownNameError(f'there is no site "{name}"; {hint}')
    return found


def sites(store: ReadableStore) -> tuple[str, list[SiteRow]]:
    """Return this cluster's name, or "", and all other sites. Raises UnavailableError."""
    cluster, names = store.read(paths.cluster()), _names(store)
    records = store.read_many([paths.site(name) for name in names])
    reading = readers(store) if names else {}
    rows = [
        SiteRow(
            name,
            record.value.gateways,
            record.value.authority,
            tuple(sorted(flow for flow, site in reading.items() if site == name)),
            record.value.standby,
            record.value.failover.since if record.value.failover else None,
            record.value.bytes_per_second,
            record.value.at,
        )
        for name, record in zip(names, records, strict=True)
        if record is not None
    ]
    return cluster.value.site if cluster else "", rows


@dataclass(frozen=True)
class RemoteSource:
    """The source of a flow that asks the other site every ``asks_seconds``."""

    remote: RemoteFlow
    asks_seconds: float


def readers(store: ReadableStore) -> dict[str, str]:
    """Return the flows that read other sites, with the site that each reads."""
    return {flow: source.remote.site for flow, source in remote_sources(store).items()}


def remote_sources(store: ReadableStore) -> dict[str, RemoteSource]:
    """Return the flows that read other sites, with their sources there."""
    flows = found_by_name(store, paths.flow, store.children(paths.flows()))
    there = {name: found for name, found in flows.items() if isinstance(found, Versioned)}
    reading: dict[str, RemoteSource] = {}
    for name, revision in current_revisions(store, there).items():
        if isinstance(revision, Versioned):
            try:
                spec = parse_flow(revision.value.effective)
            except SpecError:
                continue
            for options in (source.options for source in spec.sources):
                if (remote := options.remote) is not None:
                    reading[name] = RemoteSource(remote, options.discovery_seconds)
    return reading


def _names(store: ReadableStore) -> list[str]:
    return store.children(paths.sites())


def _check(what: str, check: Callable[[str], None], text: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise UserError(f"{what}: {error}") from error
