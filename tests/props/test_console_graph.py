"""The drawing of a graph: no box is on another one, every arrow is there, all is inside, and the
same graph gives the same drawing. A folded graph is small and leads from everything to everything
that the whole one does."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from flumeng.console.drawing import graph
from flumeng.console.drawing.graph import Arrow, Box

SETTINGS = settings(max_examples=150, deadline=None)


@st.composite
def graphs(draw: st.DrawFn, most: int = 30) -> tuple[list[Box], list[Arrow]]:
    """Boxes in an order in which all arrows lead to later ones."""
    count = draw(st.integers(1, most))
    boxes = [Box(f"n{number}", "filter", draw(st.text(max_size=60))) for number in range(count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    ends = draw(st.sets(pairs, max_size=2 * count))
    arrows = [Arrow(f"n{low}", f"n{high}", "3/s") for low, high in sorted(ends) if low < high]
    return boxes, arrows


@st.composite
def flows(draw: st.DrawFn) -> tuple[list[Box], list[Arrow]]:
    """A tree behind one root, whose leaves all lead to dead letters."""
    count = draw(st.integers(2, 300))
    kinds = st.sampled_from(["filter", "branch", "sink"])
    boxes = [Box(f"n{number}", draw(kinds), f"part {number}") for number in range(count)]
    shape = draw(st.sampled_from(["chain", "star", "any"]))
    arrows = []
    for number in range(1, count):
        before = {"chain": number - 1, "star": 0}.get(shape)
        parent = draw(st.integers(max(0, number - 9), number - 1)) if before is None else before
        arrows.append(Arrow(f"n{parent}", f"n{number}"))
    leaves = {box.id for box in boxes} - {arrow.source for arrow in arrows}
    boxes.append(Box("dead", "dead letters", "files"))
    return boxes, [*arrows, *(Arrow(leaf, "dead") for leaf in sorted(leaves))]


@given(graphs())
@SETTINGS
def test_boxes_are_apart_and_inside_and_all_arrows_join_them(
    drawn: tuple[list[Box], list[Arrow]],
) -> None:
    boxes, arrows = drawn
    layout = graph.laid_out(boxes, arrows)
    assert layout == graph.laid_out(boxes, arrows), "deterministic"
    places = layout.places
    assert places.keys() == {box.id for box in boxes}
    for number, one in enumerate(boxes):
        x, y = places[one.id]
        assert 0 <= x <= layout.width - graph.WIDTH
        assert 0 <= y <= layout.height - graph.HEIGHT
        for other in boxes[number + 1 :]:
            to_x, to_y = places[other.id]
            beside = abs(x - to_x) >= graph.WIDTH + graph.GAP - 1
            assert beside or abs(y - to_y) >= graph.HEIGHT
    assert [arrow for arrow, _ in layout.lines] == arrows
    for arrow, points in layout.lines:
        (x, y), (to_x, to_y) = places[arrow.source], places[arrow.target]
        assert abs(points[0][0] - (x + graph.WIDTH / 2)) <= 1
        assert points[0][1] == y + graph.HEIGHT
        assert abs(points[-1][0] - (to_x + graph.WIDTH / 2)) <= 1
        assert points[-1][1] == to_y
        heights = [point[1] for point in points]
        assert heights == sorted(heights), "arrows lead down"
        assert all(0 <= point[0] <= layout.width for point in points)


@given(graphs(12))
@SETTINGS
def test_arrows_pass_beside_boxes(drawn: tuple[list[Box], list[Arrow]]) -> None:
    layout = graph.laid_out(*drawn)
    for arrow, points in layout.lines:
        for x, y in points[1:-1]:
            for box in layout.boxes:
                left, top = layout.places[box.id]
                inside = left < x < left + graph.WIDTH and top <= y <= top + graph.HEIGHT
                assert not inside, (arrow, box)


@given(graphs())
@SETTINGS
def test_the_drawing_is_well_formed_whatever_the_labels(
    drawn: tuple[list[Box], list[Arrow]],
) -> None:
    boxes, arrows = drawn
    svg = str(graph.svg(graph.laid_out(boxes, arrows), '"><script>'))
    assert "<script>" not in svg
    shown = "".join(letter for letter in svg if letter.isprintable() or letter == "\n")
    root = ElementTree.fromstring(shown)
    names = [element.get("class", "") for element in root.iter()]
    assert names.count("arrow") == len(arrows)
    assert sum(name.startswith("box") for name in names) == len(boxes)


@given(flows())
@SETTINGS
def test_a_folded_flow_is_small_and_keeps_every_part(drawn: tuple[list[Box], list[Arrow]]) -> None:
    boxes, arrows = drawn
    small, lines = graph.folded(boxes, arrows)
    assert len(small) <= max(graph.MOST_BOXES, 2)
    if len(boxes) <= graph.MOST_BOXES:
        assert (small, lines) == (boxes, arrows)
    names = [name for box in small for name in _parts(box)]
    assert sorted(names) == sorted(name for box in boxes for name in _parts(box))
    order = {box.id: number for number, box in enumerate(small)}
    assert all(order[arrow.source] < order[arrow.target] for arrow in lines)
    assert all(arrow.source in order and arrow.target in order for arrow in lines)
    assert len({(arrow.source, arrow.target) for arrow in lines}) == len(lines)
    graph.laid_out(small, lines)


def test_a_fold_shows_the_worst_state_of_its_parts() -> None:
    boxes = [Box("n0", "journal", "journal")]
    boxes += [Box(f"n{number}", "sink", f"s{number}") for number in range(1, 80)]
    boxes[40] = Box("n40", "sink", "s40", state="stopped", why="refused")
    small, _ = graph.folded(boxes, [Arrow("n0", box.id) for box in boxes[1:]])
    assert [(box.state, box.why) for box in small if box.state] == [("stopped", "refused")]


def _parts(box: Box) -> Sequence[str]:
    return box.note.splitlines() if box.kind == "folded" else [f"{box.kind} {box.label}"]
