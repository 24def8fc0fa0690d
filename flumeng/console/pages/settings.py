"""Settings of the cluster, maintenance mode, masters, certificates and the schema's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import damaged
from flumeng.console.pictures import Picture
from flumeng.control.commands import settings
from flumeng.control.commands.lookup import found_by_name
from flumeng.control.commands.settings import SettingRow
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot.reader import planning_masters, share_of
from flumeng.control.zookeeper import Versioned
from flumeng.platform.security import expiry, roles
from zkschema import paths, table
from zkschema.records import Cluster, LiveMaster, Schema

CERTIFICATE = "certificate"


@dataclass(frozen=True)
class Master:
    """A live master. ``record``: None if it cannot be read. ``flows``: how many it plans."""

    name: str
    record: LiveMaster | None
    flows: int


def _masters(cache: ReadCache) -> list[Master]:
    names = cache.children(paths.live_masters())
    found = found_by_name(cache, paths.live_master, names)
    live = {name: record for name, record in found.items() if record is not None}
    planning = planning_masters(live)
    flows = cache.children(paths.flows())
    return [
        Master(
            name=name,
            record=record.value if isinstance(record, Versioned) else None,
            flows=len(share_of(name, flows, planning)) if name in planning else 0,
        )
        for name, record in live.items()
    ]


@dataclass(frozen=True)
class Warned:
    """A certificate that ends soon or is unusable, as the process ``who`` reports it."""

    who: str
    subject: str
    why: str


def warned(picture: Picture, masters: Sequence[Master]) -> list[Warned]:
    """Return what masters and live nodes report about their certificates."""
    reports = [
        *((f"master {m.name}", m.record.troubles) for m in masters if m.record),
        *((f"node {node.node}", node.problems) for node in picture.nodes if node.live),
    ]
    return [
        Warned(who, subject, why)
        for who, report in reports
        for subject, why in sorted(report.items())
        if subject.startswith(CERTIFICATE)
    ]


def own_certificates() -> Sequence[Mapping[str, Any]]:
    """Return the certificates in the console's identity; none in an open cluster."""
    folder = roles.folder()
    return expiry.described(folder, expiry.utc_now()) if folder else ()


@dataclass(frozen=True)
class Facts:
    """The records of the cluster in ZooKeeper. An unreadable one is None, or an empty ``rows``."""

    cluster: Cluster | None
    schema: Schema | None
    rows: Sequence[SettingRow]
    masters: Sequence[Master]
    damaged: Sequence[Cause]


def _facts(console: Console) -> Facts:
    with console.copy.query() as cache:
        cluster, schema = cache.read(paths.cluster()), cache.read(paths.schema())
        return Facts(
            cluster=cluster.value if cluster else None,
            schema=schema.value if schema else None,
            rows=settings.settings(cache)[0] if cluster and schema else (),
            masters=_masters(cache),
            damaged=damaged(cache, paths.cluster, paths.schema, paths.live_master),
        )


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    facts = console.shared.answer("settings", lambda: _facts(console))
    return rendering.page(
        request,
        "settings.html",
        facts=facts,
        shown=settings.shown,
        known=table.VERSION,
        certificates=console.shared.answer("certificates", own_certificates),
        warned=warned(console.pictures.look(), facts.masters),
    )


ROUTES = [Route("/settings", page)]
