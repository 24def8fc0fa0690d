"""The clusters of a read command: one cluster, one site of an inventory, or all sites."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from cli.context import CliContext
from cli.options import inventory_option, optional_inventory_option, optional_zk_option
from cli.output import show_json, show_rows, show_table, warn
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import FlumengError, UserError
from flumeng.platform.options.problems import nearest

if TYPE_CHECKING:
    from flumeng.fleet.inventory import Inventory, Site

P = ParamSpec("P")
R = TypeVar("R")

SILENT = 4
"""The exit code when a site could not be read."""


@dataclass(frozen=True)
class Clusters:
    context: CliContext
    hosts: str = ""
    site: Site | None = None
    sites: Sequence[Site] = ()

    @property
    def are_many(self) -> bool:
        return not self.hosts and self.site is None

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Yield the one cluster's store; close it afterwards, unless it is kept by the shell."""
        if self.site is None:
            with self.context.store(self.hosts) as store:
                yield store
        else:
            with closing(self.context.open_site(self.site)) as store:
                yield store

    def read_each(self, read: Callable[[Store], R]) -> Mapping[str, R | FlumengError]:
        """Read all ``sites`` at once; return the result or the error of each."""
        from flumeng.fleet.parallel_sites import in_sites  # noqa: PLC0415  only for many sites

        def read_site(site: Site) -> R:
            with closing(self.context.open_site(site)) as store:
                return read(store)

        return in_sites(self.sites, read_site)

    def show_list(
        self,
        read: Callable[[Store], Sequence[Any]],
        headers: Sequence[str],
        cells: Callable[[Any], Sequence[object]],
        *,
        as_json: bool,
    ) -> None:
        """Show a row for each dataclass that ``read`` returns, with its site when there are many.
        Sites that cannot be read are reported on standard error, with exit code 4."""
        if not self.are_many:
            with self.open() as store:
                rows = read(store)
            show_rows(rows, headers, cells, as_json=as_json)
            return
        results = self.read_each(read)
        silent = {name: rows for name, rows in results.items() if isinstance(rows, FlumengError)}
        listed = [
            (name, row)
            for name, rows in results.items()
            if not isinstance(rows, FlumengError)
            for row in rows
        ]
        if as_json:
            show_json([{"site": name, **asdict(row)} for name, row in listed])
        else:
            show_table(("SITE", *headers), [(name, *cells(row)) for name, row in listed])
        for name, error in silent.items():
            warn(f"site {name} cannot be read: {error}")
        if silent:
            raise SystemExit(SILENT)


def with_clusters(
    command: Callable[Concatenate[CliContext, Clusters, P], None],
) -> Callable[P, None]:
    """Add the options that choose clusters; the command gets the context and the clusters."""

    @optional_zk_option
    @click.option("--site", "site_name", metavar="SITE", help="A site of the inventory.")
    @click.option("--all-sites", is_flag=True, help="All sites of the inventory at once.")
    @optional_inventory_option
    @functools.wraps(command)
    def chosen(*args: P.args, **options: P.kwargs) -> None:
        here = click.get_current_context()
        context = here.ensure_object(CliContext)
        hosts: Any = options.pop("hosts")
        name: Any = options.pop("site_name")
        all_sites: Any = options.pop("all_sites")
        directory: Any = options.pop("inventory_directory")
        zk_given = here.get_parameter_source("hosts") == ParameterSource.COMMANDLINE
        if (name is not None) + bool(all_sites) + zk_given > 1:
            raise UserError("give one of --zk, --site and --all-sites")
        if name is not None:
            clusters = Clusters(context, site=find_site(_inventory(directory), name))
        elif all_sites:
            clusters = Clusters(context, sites=tuple(_inventory(directory).sites.values()))
        elif hosts:
            clusters = Clusters(context, hosts)
        else:
            raise UserError(
                "no cluster is given: use --zk HOST:PORT/CHROOT (or FLUMENG_ZK), or --site or "
                "--all-sites of an inventory"
            )
        return command(context, clusters, *args, **options)

    return chosen


def with_inventory(
    command: Callable[Concatenate[CliContext, Inventory, P], None],
) -> Callable[P, None]:
    """Add the required ``--inventory``; the command gets the context and the inventory. The call
    raises InventoryError for a faulty inventory."""

    @inventory_option
    @functools.wraps(command)
    def opened(*args: P.args, **options: P.kwargs) -> None:
        context = click.get_current_context().ensure_object(CliContext)
        directory: Any = options.pop("inventory_directory")
        command(context, _inventory(directory), *args, **options)

    return opened


def find_site(inventory: Inventory, name: str) -> Site:
    if name not in inventory.sites:
        raise UserError(f'there is no site "{name}": {nearest(name, inventory.sites)}')
    return inventory.sites[name]


def _inventory(directory: Path | None) -> Inventory:
    from flumeng.fleet.inventory.files import read_inventory  # noqa: PLC0415  only for sites

    if directory is None:
        raise UserError("--site and --all-sites need --inventory DIR (or FLUMENG_INVENTORY)")
    return read_inventory(directory)
