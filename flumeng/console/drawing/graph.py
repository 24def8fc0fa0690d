"""Layered drawings of directed graphs without circles, from top to bottom. Pure and deterministic.

Follows Sugiyama, Tagawa and Toda (1981): layers by longest path, few crossings by medians, then
positions. An edge over several layers has a point in each, which takes room as a box does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup

MOST_BOXES = 50
WIDTH, HEIGHT = 216, 64
GAP, BETWEEN = 20, 46
"""Free room beside boxes, and between layers."""
MARGIN = 8
POINT = 14
"""The room for an edge that passes a layer."""
SWEEPS = 4
CHARACTERS = 27
NAMED = 20
SIGNS = {"stopped": "\N{MULTIPLICATION X}", "late": "!", "ok": "\N{CHECK MARK}", "": ""}
WORDS = {"stopped": "events stop here", "late": "events fail or wait here", "ok": "", "": ""}


@dataclass(frozen=True)
class Box:
    """``note``: a third line. ``state``: ``ok``, ``late``, ``stopped`` or empty; ``why`` it is so.
    ``href``: where a click leads."""

    id: str
    kind: str
    label: str
    note: str = ""
    state: str = ""
    why: str = ""
    href: str = ""


@dataclass(frozen=True)
class Arrow:
    source: str
    target: str
    label: str = ""
    href: str = ""


@dataclass(frozen=True)
class Layout:
    """``places``: the left upper corner of each box. ``lines``: for each arrow its points, from the
    lower side of its source to the upper side of its target."""

    width: int
    height: int
    boxes: Sequence[Box]
    places: Mapping[str, tuple[int, int]]
    lines: Sequence[tuple[Arrow, Sequence[tuple[int, int]]]]


def laid_out(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> Layout:
    """Lay out the graph. ``boxes`` are in an order in which all arrows lead to later ones."""
    rows = _layers(boxes, arrows)
    layers, links = _with_points(boxes, arrows, rows)
    layers = _ordered(layers, links)
    centers = _positions(layers, links)
    pitch = HEIGHT + BETWEEN
    places = {
        box.id: (round(centers[box.id] - WIDTH / 2), MARGIN + rows[box.id] * pitch) for box in boxes
    }
    lines = [
        (arrow, tuple(_points(number, arrow, rows, centers))) for number, arrow in enumerate(arrows)
    ]
    right = max((centers[name] + _room(name) / 2 for layer in layers for name in layer), default=0)
    height = 2 * MARGIN + max(1, len(layers)) * pitch - BETWEEN
    return Layout(round(right) + MARGIN, height, tuple(boxes), places, lines)


def _layers(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    rows = {box.id: 0 for box in boxes}
    leaving = _by_source((arrow.source, arrow.target) for arrow in arrows)
    for box in boxes:
        for target in leaving[box.id]:
            rows[target] = max(rows[target], rows[box.id] + 1)
    return rows


def _with_points(
    boxes: Sequence[Box], arrows: Sequence[Arrow], rows: Mapping[str, int]
) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Return the names in each layer, and the pairs of neighbours in adjacent ones."""
    layers: list[list[str]] = [[] for _ in range(max(rows.values(), default=-1) + 1)]
    for box in boxes:
        layers[rows[box.id]].append(box.id)
    links = []
    for number, arrow in enumerate(arrows):
        before = arrow.source
        for row in range(rows[arrow.source] + 1, rows[arrow.target]):
            layers[row].append(_point(number, row))
            links.append((before, _point(number, row)))
            before = _point(number, row)
        links.append((before, arrow.target))
    return layers, links


def _point(number: int, row: int) -> str:
    return f"\0{number} {row}"


def _room(name: str) -> int:
    return POINT if name.startswith("\0") else WIDTH


def _by_source(links: Iterator[tuple[str, str]]) -> defaultdict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in links:
        found[source].append(target)
    return found


def _ordered(layers: list[list[str]], links: list[tuple[str, str]]) -> list[list[str]]:
    below = _by_source(iter(links))
    above = _by_source((target, source) for source, target in links)
    best, fewest = layers, _crossings(layers, below)
    for sweep in range(2 * SWEEPS):
        if not fewest:
            break
        beside = below if sweep % 2 else above
        layers = _sorted(layers, beside, upwards=bool(sweep % 2))
        crossings = _crossings(layers, below)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _sorted(
    layers: list[list[str]], beside: Mapping[str, list[str]], *, upwards: bool
) -> list[list[str]]:
    done = [list(layer) for layer in layers]
    order = range(len(done) - 2, -1, -1) if upwards else range(1, len(done))
    for row in order:
        fixed = {name: at for at, name in enumerate(done[row + 1 if upwards else row - 1])}
        own = {name: at for at, name in enumerate(done[row])}

        def wanted(
            name: str, fixed: dict[str, int] = fixed, own: dict[str, int] = own
        ) -> tuple[float, int]:
            places = [fixed[other] for other in beside.get(name, ()) if other in fixed]
            return (sum(places) / len(places) if places else own[name], own[name])

        done[row].sort(key=wanted)
    return done


def _crossings(layers: list[list[str]], below: Mapping[str, list[str]]) -> int:
    crossings = 0
    for upper, lower in pairwise(layers):
        at = {name: number for number, name in enumerate(lower)}
        ends = [end for name in upper for end in sorted(at[to] for to in below.get(name, ()))]
        crossings += sum(
            ends[later] < end
            for number, end in enumerate(ends)
            for later in range(number + 1, len(ends))
        )
    return crossings


def _positions(layers: list[list[str]], links: list[tuple[str, str]]) -> dict[str, float]:
    """Return the centre of each name: near its neighbours, and apart from others of its layer."""
    below = _by_source(iter(links))
    above = _by_source((target, source) for source, target in links)
    centers: dict[str, float] = {}
    for layer in layers:
        left = 0.0
        for name in layer:
            centers[name] = left + _room(name) / 2
            left += _room(name) + GAP
    for sweep in range(2 * SWEEPS + 1):
        upwards = bool(sweep % 2)
        beside = below if upwards else above
        for layer in layers[::-1] if upwards else layers:
            wanted = [
                sum(centers[other] for other in beside[name]) / len(beside[name])
                if beside[name]
                else centers[name]
                for name in layer
            ]
            centers |= zip(layer, _apart(wanted, [_room(name) for name in layer]), strict=True)
    left = min((centers[name] - _room(name) / 2 for name in centers), default=0.0)
    return {name: center - left + MARGIN for name, center in centers.items()}


def _apart(wanted: Sequence[float], rooms: Sequence[int]) -> list[float]:
    """Return centres near the wanted ones, in this order, that keep GAP between neighbours. The sum
    of squared distances is the least possible: regression under order, by pooling neighbours."""
    shifts = [0.0]
    for before, room in pairwise(rooms):
        shifts.append(shifts[-1] + before / 2 + GAP + room / 2)
    pools: list[tuple[float, int]] = []
    for value, shift in zip(wanted, shifts, strict=False):
        total, count = value - shift, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, others = pools.pop()
            total, count = total + more, count + others
        pools.append((total, count))
    flat = [total / count for total, count in pools for _ in range(count)]
    return [value + shift for value, shift in zip(flat, shifts, strict=False)]


def _points(
    number: int, arrow: Arrow, rows: Mapping[str, int], centers: Mapping[str, float]
) -> Iterator[tuple[int, int]]:
    pitch = HEIGHT + BETWEEN
    first, last = rows[arrow.source], rows[arrow.target]
    yield round(centers[arrow.source]), MARGIN + first * pitch + HEIGHT
    for row in range(first + 1, last):
        x = round(centers[_point(number, row)])
        yield x, MARGIN + row * pitch
        yield x, MARGIN + row * pitch + HEIGHT
    yield round(centers[arrow.target]), MARGIN + last * pitch


def folded(
    boxes: Sequence[Box], arrows: Sequence[Arrow], most: int = MOST_BOXES
) -> tuple[list[Box], list[Arrow]]:
    """Return a graph of at most ``most`` boxes: boxes beside each other become one, then a box and
    the only one behind it. A graph of one root always becomes small enough."""
    kept, edges = list(boxes), list(arrows)
    while len(kept) > most:
        groups = _alike(kept, edges, len(kept) - most) or _chained(kept, edges)
        if not groups:
            break
        for group in groups:
            kept, edges = _merged(kept, edges, group)
            if len(kept) <= most:
                break
    return kept, edges


def _alike(boxes: Sequence[Box], arrows: Sequence[Arrow], excess: int) -> list[list[Box]]:
    """Return groups of boxes with equal neighbours, the largest first; no larger than needed."""
    before, after = _neighbours(arrows)
    groups: dict[tuple[frozenset[str], frozenset[str]], list[Box]] = {}
    for box in boxes:
        around = frozenset(before[box.id]), frozenset(after[box.id])
        if any(around):
            groups.setdefault(around, []).append(box)
    several = [group for group in groups.values() if len(group) > 1]
    return [group[-excess - 1 :] for group in sorted(several, key=len, reverse=True)]


def _chained(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> list[list[Box]]:
    """Return the last pair of which each is the other's only neighbour on that side."""
    before, after = _neighbours(arrows)
    by_id = {box.id: box for box in boxes}
    for box in reversed(boxes):
        if len(before[box.id]) == 1:
            (above,) = before[box.id]
            if len(after[above]) == 1 or after[above] - {box.id} == after[box.id]:
                return [[by_id[above], box]]
    return []


def _neighbours(
    arrows: Sequence[Arrow],
) -> tuple[defaultdict[str, set[str]], defaultdict[str, set[str]]]:
    before: defaultdict[str, set[str]] = defaultdict(set)
    after: defaultdict[str, set[str]] = defaultdict(set)
    for arrow in arrows:
        before[arrow.target].add(arrow.source)
        after[arrow.source].add(arrow.target)
    return before, after


def _merged(
    boxes: Sequence[Box], arrows: Sequence[Arrow], group: Sequence[Box]
) -> tuple[list[Box], list[Arrow]]:
    first, gone = group[0], {box.id for box in group[1:]}
    names = [
        name for box in group for name in (box.note.splitlines() or [f"{box.kind} {box.label}"])
    ]
    order = ("stopped", "late", "ok", "")
    worst = min(group, key=lambda box: order.index(box.state))
    one = replace(
        first,
        kind="folded",
        label=f"{len(names)} parts, folded",
        note="\n".join(names),
        state=worst.state,
        why=worst.why,
    )
    kept = [one if box is first else box for box in boxes if box.id not in gone]
    edges: dict[tuple[str, str], Arrow] = {}
    for arrow in arrows:
        ends = tuple(first.id if end in gone else end for end in (arrow.source, arrow.target))
        if ends[0] != ends[1]:
            moved = replace(arrow, source=ends[0], target=ends[1])
            known = edges.setdefault((ends[0], ends[1]), moved)
            if known.label != moved.label:
                edges[ends[0], ends[1]] = replace(known, label="")
    return kept, list(edges.values())


def svg(layout: Layout, label: str) -> Markup:
    """Return the drawing. ``label``: its name. Each colour comes with a sign and words."""
    entries = Counter(arrow.target for arrow, _ in layout.lines)
    parts = [
        _line(arrow, points, at_source=entries[arrow.target] > 1) for arrow, points in layout.lines
    ]
    parts += [_box(box, *layout.places[box.id]) for box in layout.boxes]
    return Markup(
        '<svg class="graph" role="group" aria-label="{}" width="{}" height="{}" '
        'viewBox="0 0 {} {}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>{}</svg>'
    ).format(
        label, layout.width, layout.height, layout.width, layout.height, Markup("").join(parts)
    )


def _line(arrow: Arrow, points: Sequence[tuple[int, int]], *, at_source: bool) -> Markup:
    """Return an arrow. Its label is beside its tip; ``at_source``: beside its start, since other
    arrows end there too."""
    (x, y), *rest = points
    pieces = [f"M{x} {y}"]
    for number, (to_x, to_y) in enumerate(rest):
        if number % 2:
            pieces.append(f"L{to_x} {to_y}")
        else:
            middle = (y + to_y) / 2
            pieces.append(f"C{x} {middle:g} {to_x} {middle:g} {to_x} {to_y}")
        x, y = to_x, to_y
    line = Markup('<path class="arrow" marker-end="url(#tip)" d="{}"/>').format(" ".join(pieces))
    if not arrow.label:
        return line
    at_x, at_y = points[0] if at_source else points[-1]
    text = Markup('<text class="rate" x="{}" y="{}">{}</text>').format(
        at_x + 7, at_y + (14 if at_source else -9), arrow.label
    )
    if not arrow.href:
        return line + text
    return line + Markup('<a href="{}">{}</a>').format(arrow.href, text)


def _box(box: Box, x: int, y: int) -> Markup:
    sign = f"{SIGNS[box.state]} " if SIGNS[box.state] else ""
    names = box.note.splitlines()
    note = box.why or (box.note if box.kind != "folded" else "")
    about = [f"{box.kind} {box.label}", *names[:NAMED]]
    if len(names) > NAMED:
        about.append(f"and {len(names) - NAMED} more")
    if box.state:
        about += [words for words in (WORDS[box.state], box.why) if words]
    drawn = Markup(
        '<svg class="box {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title>'
        '<rect x="2" y="2" width="{}" height="{}" rx="5"/>'
        '<text class="kind" x="9" y="18">{}</text><text class="label" x="9" y="36">{}</text>'
        '<text class="note" x="9" y="53">{}</text></svg>'
    ).format(
        box.state or "plain",
        x,
        y,
        WIDTH,
        HEIGHT,
        "\n".join(about),
        WIDTH - 4,
        HEIGHT - 4,
        sign + box.kind + (f": {WORDS[box.state]}" if WORDS[box.state] else ""),
        shortened(box.label, CHARACTERS),
        shortened(note, CHARACTERS + 8),
    )
    if not box.href:
        return drawn
    return Markup('<a href="{}">{}</a>').format(box.href, drawn)


def shortened(text: str, characters: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= characters else text[: characters - 1] + "\N{HORIZONTAL ELLIPSIS}"
