"""The samples behind sparklines."""

from __future__ import annotations

from flumeng.console.drawing.sparklines import sparkline
from flumeng.console.history import SAMPLES, STEP_SECONDS, History


def test_samples_are_oldest_first_and_old_ones_go() -> None:
    history = History()
    for number in range(SAMPLES + 5):
        history.add({"lag": float(number)}, number * STEP_SECONDS)
    assert history.of("lag") == [float(number) for number in range(5, SAMPLES + 5)]


def test_missed_samples_are_unknown() -> None:
    history = History()
    history.add({"lag": 1.0}, 0.0)
    history.add({"lag": 2.0}, 3 * STEP_SECONDS)
    assert history.of("lag")[-4:] == [1.0, None, None, 2.0]


def test_unknown_values_are_gaps_and_series_without_values_go() -> None:
    history = History()
    history.add({"lag": None, "in": 1.0}, 0.0)
    history.add({"lag": 5.0}, STEP_SECONDS)
    assert history.of("lag")[-2:] == [None, 5.0]
    assert history.of("in") == []


def test_a_sample_is_due_after_a_step() -> None:
    history = History()
    assert history.is_due(0.0)
    history.add({}, 0.0)
    assert not history.is_due(STEP_SECONDS - 0.1)
    assert history.is_due(STEP_SECONDS)


def test_a_sparkline_breaks_at_gaps_and_escapes_its_label() -> None:
    drawn = str(sparkline([0.0, 4.0, None, 2.0, 4.0], '"><script>'))
    assert drawn.count("M") == 2
    assert drawn.count("L") == 2
    assert "<script>" not in drawn
    assert sparkline([], "nothing").endswith('<path d=""/></svg>')
