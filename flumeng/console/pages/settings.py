"""Settings of the cluster, maintenance mode, masters, certificates and the schema's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.console import Console
from flumeng.console.pages import rendering
from flumeng.console.pages.listing import damaged
from flumeng.console.pictures import Picture
from flumeng.control.commands import settings
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import Unreadable, Versioned
from flumeng.platform.security import expiry, roles
from zkschema import paths, table
from zkschema.records import LiveMaster

CERTIFICATE = "certificate"


@dataclass(frozen=True)
class Warned:
    """A certificate that ends soon or is unusable, as the process ``who`` reports it."""

    who: str
    subject: str
    why: str


def warned(picture: Picture, masters: Mapping[str, LiveMaster | None]) -> list[Warned]:
    """Return what masters and live nodes report about their certificates."""
    reports = [
        *((f"master {name}", live.troubles) for name, live in masters.items() if live),
        *((f"node {node.node}", node.problems) for node in picture.nodes if node.live),
    ]
    return [
        Warned(who, subject, why)
        for who, report in reports
        for subject, why in sorted(report.items())
        if subject.startswith(CERTIFICATE)
    ]


def own_certificates() -> Sequence[Mapping[str, object]]:
    """Return the certificates in the console's identity; none in an open cluster."""
    folder = roles.folder()
    return expiry.described(folder, expiry.utc_now()) if folder else ()


def _masters(cache: ReadCache) -> dict[str, LiveMaster | None]:
    """Return the live masters; None for an unreadable record."""
    names = cache.children(paths.live_masters())
    found = cache.read_each([paths.live_master(name) for name in names])
    return {
        name: record.value if isinstance(record, Versioned) else None
        for name, record in zip(names, found, strict=True)
        if record is not None
    }


def page(request: Request) -> Response:
    console: Console = request.app.state.console
    picture = console.pictures.look()
    with console.copy.query() as cache:
        cluster, schema = (
            cache.read_each([paths.cluster()])[0],
            cache.read_each([paths.schema()])[0],
        )
        rows, maintenance = (
            settings.settings(cache) if not isinstance(cluster, Unreadable) else ([], None)
        )
        masters = _masters(cache)
        broken: list[Cause] = damaged(cache, paths.cluster, paths.schema, paths.live_master)
    return rendering.page(
        request,
        "settings.html",
        rows=rows,
        shown=settings.shown,
        maintenance=maintenance,
        masters=masters,
        schema=schema.value if isinstance(schema, Versioned) else None,
        known=table.VERSION,
        site=cluster.value.site if isinstance(cluster, Versioned) else "",
        chokes=cluster.value.chokes if isinstance(cluster, Versioned) else {},
        certificates=console.shared.answer("certificates", own_certificates),
        warned=warned(picture, masters),
        damaged=broken,
    )


ROUTES = [Route("/settings", page)]
