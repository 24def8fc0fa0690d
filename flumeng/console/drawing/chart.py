"""Values over time as a chart with axes, whose values are titles and a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from flumeng.control.queries.links import span as duration

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 26
TICKS = 4
QUARTERS = 4


def chart(values: Sequence[float | None], seconds: float, label: str, unit: str) -> Markup:
    """Return an SVG of the values, one for each ``seconds``, oldest first; unknown ones are gaps.
    ``label``: its name; ``unit``: of the values, such as ``events``."""
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = top_of(max((value for value in values if value is not None), default=0.0)) / TICKS
    top = step * TICKS
    span = seconds * max(1, len(values) - 1)

    def x_of(index: int) -> float:
        return LEFT + inner_width * index / max(1, len(values) - 1)

    def y_of(value: float) -> float:
        return TOP + inner_height * (1 - max(0.0, value) / top)

    parts = []
    for number in range(TICKS + 1):
        y = y_of(number * step)
        parts.append(
            Markup(
                '<path class="grid" d="M{} {:.1f}H{}"/><text class="axis end" x="{}" y="{:.1f}">{}'
                "</text>"
            ).format(LEFT, y, WIDTH - RIGHT, LEFT - 6, y + 4, short(number * step))
        )
    for part in range(QUARTERS + 1):
        ago = span * (QUARTERS - part) / QUARTERS
        parts.append(
            Markup('<text class="{}" x="{:.1f}" y="{}">{}</text>').format(
                "axis end" if not ago else "axis middle",
                LEFT + inner_width * part / QUARTERS,
                HEIGHT - 6,
                f"-{duration(ago)}" if ago else "now",
            )
        )
    lines, pen = [], "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        lines.append(f"{pen}{x_of(index):.1f} {y_of(value):.1f}")
        if pen == "M":
            lines.append("h.1")
        pen = "L"
        ago = (len(values) - 1 - index) * seconds
        parts.append(
            Markup(
                '<rect class="value" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}'
                "</title></rect>"
            ).format(
                x_of(index) - inner_width / max(1, len(values) - 1) / 2,
                TOP,
                inner_width / max(1, len(values) - 1),
                inner_height,
                f"{ago_words(ago)}: {value:,.0f} {unit}",
            )
        )
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}">{}'
        '<path class="line" d="{}"/></svg>'
    ).format(label, WIDTH, HEIGHT, Markup("").join(parts), " ".join(lines))


def top_of(value: float) -> float:
    """Return the least of 4, 8, 20, 40, 80 and so on that is not below the value."""
    size = 1.0
    while True:
        for many in (4, 8, 20):
            if value <= many * size:
                return many * size
        size *= 10


def short(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def ago_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s ago" if seconds else "now"
    return (
        f"{seconds / 60:.0f} min ago"
        if seconds % 60 == 0
        else (f"{int(seconds // 60)} min {seconds % 60:.0f} s ago")
    )


def sampled(values: Sequence[float | None], every: int) -> list[tuple[int, float | None]]:
    """Return each value at a distance of ``every``, newest first, with how many are after it."""
    return [(after, values[-1 - after]) for after in range(0, len(values), every)]
