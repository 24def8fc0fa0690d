"""The other sites that this cluster knows."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.control.commands.sites import SiteRow, require_site, sites
from flumeng.control.zookeeper import ReadableStore


@dataclass(frozen=True)
class KnownSites:
    """``here``: this cluster's name among sites; None without one."""

    here: str | None
    sites: tuple[SiteRow, ...]


def known_sites(store: ReadableStore) -> KnownSites:
    here, rows = sites(store)
    return KnownSites(here or None, tuple(rows))


def site(store: ReadableStore, name: str) -> SiteRow:
    """Return one site. Raises UnknownNameError with the nearest name for an unknown one."""
    require_site(store, name)
    return next(row for row in sites(store)[1] if row.site == name)
