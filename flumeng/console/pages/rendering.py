"""Renders templates. Every value is escaped; a page has no inline script or style."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from flumeng import __version__
from flumeng.console.drawing.sparklines import sparkline
from flumeng.console.linking import linked
from flumeng.console.pictures import Picture
from flumeng.control.queries import timestamps
from flumeng.control.queries.links import amount, span

NO_TEXT = "backslashreplace"
"""Bytes of a file name or an argument that are no UTF-8 are shown as in ``\\udcff``."""
TEMPLATES = Path(__file__).parents[1] / "templates"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["version"] = __version__
    environment.filters |= {
        "urlencode": urlencoded,
        "utc": utc,
        "number": number,
        "seconds": seconds,
        "amount": amount,
        "sparkline": sparkline,
        "linked": linked,
    }
    return environment


def page(
    request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, **values: Any
) -> Response:
    """Return the page. Templates have ``console``, ``viewer``, ``picture``, ``now``, ``values``."""
    console = request.app.state.console
    shown = {
        "console": console,
        "viewer": getattr(request.state, "viewer", None),
        "picture": console.pictures.look(),
        "history": console.pictures.history,
        "now": console.clock(),
        "path": request.url.path,
        **values,
    }
    html = _environment().get_template(template).render(shown)
    return HTMLResponse(_bytes(html), status)


def shared_page(
    request: Request, template: str, values: Callable[[Picture], dict[str, Any]]
) -> Response:
    """Return a page whose content is rendered once for all viewers of a picture with equal rights.
    ``values``: of the template, whose ``viewer`` has the rights alone."""
    console = request.app.state.console
    picture = console.pictures.look()
    viewer = getattr(request.state, "viewer", None)
    rights = replace(viewer, name="", proof="loopback", csrf="") if viewer is not None else None

    def render() -> tuple[Markup, Markup]:
        found = _environment().get_template(template)
        context = found.new_context(
            {
                "console": console,
                "viewer": rights,
                "picture": picture,
                "history": console.pictures.history,
                "now": console.clock(),
                **values(picture),
            }
        )
        title, main = ("".join(found.blocks[name](context)) for name in ("title", "main"))
        return Markup(title), Markup(main)

    title, main = console.shared.answer((template, rights, picture.number), render)
    return page(request, "shared.html", picture=picture, title=title, main=main)


def bare(template: str, status: HTTPStatus, **values: Any) -> Response:
    """Return a page that shows nothing of the cluster, for those who may not look."""
    return HTMLResponse(_bytes(_environment().get_template(template).render(**values)), status)


def _bytes(html: str) -> bytes:
    return html.encode(errors=NO_TEXT)


def urlencoded(value: str | Mapping[str, str]) -> str:
    """Return a part of a path, or a query."""
    if isinstance(value, Mapping):
        return urlencode(value, errors=NO_TEXT)
    return quote(value, errors=NO_TEXT)


def utc(time: float) -> Markup:
    """Return a moment as an element that scripts show in the reader's own time zone."""
    shown = timestamps.utc(time)
    return Markup('<time datetime="{}Z">{} UTC</time>').format(shown.replace(" ", "T"), shown)


def number(value: float | None) -> str:
    """Return a number for people: ``1.2 M``, ``12 k``, ``3.4``; a dash when it is unknown."""
    if value is None or math.isnan(value):
        return "-"
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (limit if limit != 1e4 else 1e3):.3g}{unit}"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """Return a duration for people, such as ``15 s`` or ``3 h``; a dash when it is unknown."""
    return "-" if value is None else span(value)
