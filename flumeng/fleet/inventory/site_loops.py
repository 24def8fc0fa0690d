"""Refuses flows that read each other over sites in a circle: their events would go round. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flumeng.config import SpecError, parse_flow
from flumeng.control.commands.chains import upstream_of
from flumeng.fleet.resources import FLOW, Resources, kind_of, name_of
from flumeng.platform.errors import UserError

Place = tuple[str, str]
"""A site and one of its flows."""


def refuse(rendered: Mapping[str, Resources]) -> None:
    """Raise UserError with the path of a loop over sites, if there is one. ``rendered``: resources
    by site."""
    path = loop(dict(_edges(rendered)))
    if path:
        shown = " -> ".join("/".join(place) for place in path)
        raise UserError(
            f"the flows form a loop over sites: {shown}. Let one of them read a flow that receives "
            "only events of its own site"
        )


def loop(sources: Mapping[Place, Place]) -> list[Place]:
    """Return a loop in the direction of the events, its first place repeated last; else nothing.
    ``sources``: what each flow reads."""
    done: set[Place] = set()
    for first in sorted(sources):
        walked: list[Place] = []
        place: Place | None = first
        while place is not None and place not in done and place not in walked:
            walked.append(place)
            place = sources.get(place)
        if place is not None and place in walked:
            circle = walked[walked.index(place) :]
            least = circle.index(min(circle))
            circle = [*circle[least:], *circle[:least]]
            return [circle[0], *reversed(circle)]
        done.update(walked)
    return []


def _edges(rendered: Mapping[str, Resources]) -> Iterator[tuple[Place, Place]]:
    reads: dict[str, tuple[str, str] | None] = {}
    for site, resources in rendered.items():
        for key, text in resources.items():
            if kind_of(key) != FLOW:
                continue
            if text not in reads:
                reads[text] = _read(text)
            if (source := reads[text]) is not None:
                yield (site, name_of(key)), (source[0] or site, source[1])


def _read(text: str) -> tuple[str, str] | None:
    """Return the site ("" for the same one) and the flow that a flow reads; None for no flow."""
    if "site" not in text and "flow:" not in text.partition("\n")[2]:
        return None
    try:
        spec = parse_flow(text)
    except SpecError:
        return None
    remotes = (source.options.remote for source in spec.sources)
    remote = next(filter(None, remotes), None)
    if remote is not None:
        return remote.site, remote.flow
    upstream = upstream_of(spec)
    return ("", upstream) if upstream else None
