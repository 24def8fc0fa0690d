"""A line of values as SVG, as wide as its text is high."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 120, 24


def sparkline(values: Sequence[float | None], label: str) -> Markup:
    """Return an SVG of the values, oldest first; unknown ones are gaps. ``label``: what it shows,
    for those who do not see it. Of more values than WIDTH the largest of neighbours are drawn."""
    values = _thinned(values)
    known = [value for value in values if value is not None]
    top = max(known, default=0.0) or 1.0
    step = WIDTH / max(1, len(values) - 1)
    lines: list[str] = []
    pen = "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        y = HEIGHT - 1 - (HEIGHT - 2) * max(0.0, value) / top
        lines.append(f"{pen}{index * step:.1f} {y:.1f}")
        pen = "L"
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="0 0 {} {}" '
        'preserveAspectRatio="none"><path d="{}"/></svg>'
    ).format(label, WIDTH, HEIGHT, " ".join(lines))


def _thinned(values: Sequence[float | None]) -> Sequence[float | None]:
    group = -(-len(values) // WIDTH)
    if group <= 1:
        return values
    parts = (values[start : start + group] for start in range(0, len(values), group))
    return [max((v for v in part if v is not None), default=None) for part in parts]
