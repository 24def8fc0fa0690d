"""The lag of partitions over the last hour, in bounded memory."""

from __future__ import annotations

from flumeng.console.history import STEP_SECONDS
from flumeng.console.lag_history import KEPT_SECONDS, MOST_FLOWS, MOST_PARTITIONS, LagHistory
from flumeng.control.queries.lag import LagOfFlow, PartitionLag
from flumeng.platform.errors import UnavailableError
from tests.testkit.clock import Clock


def lag(**events: int | None) -> LagOfFlow:
    rows = tuple(
        PartitionLag(name, 0, None, number, None, None, None, None)
        for name, number in events.items()
    )
    return LagOfFlow("web", "running", 0, None, None, None, None, (), (), (), rows)


class Still(LagHistory):
    """Samples only when a test does."""

    def _run(self) -> None:
        """End at once."""


def test_a_flow_is_sampled_from_the_first_look_until_an_hour_after_the_last() -> None:
    clock, asked = Clock(), []

    def ask(flow: str) -> LagOfFlow:
        asked.append(flow)
        return lag(a=len(asked))

    history = Still(ask, clock)
    series = history.look("web", lag(a=0, b=None))
    for _ in range(3):
        clock.now += STEP_SECONDS
        assert history.sample()
    assert series.of("a")[-4:] == [0.0, 1.0, 2.0, 3.0]
    assert series.of("b") == []
    assert asked == ["web"] * 3
    clock.now += KEPT_SECONDS + 1
    assert not history.sample()
    assert asked == ["web"] * 3


def test_a_node_that_does_not_answer_leaves_a_gap() -> None:
    clock = Clock()
    answers: list[LagOfFlow | None] = [None, lag(a=5)]

    def ask(_flow: str) -> LagOfFlow:
        answer = answers.pop(0)
        if answer is None:
            raise UnavailableError("no answer")
        return answer

    history = Still(ask, clock)
    series = history.look("web", lag(a=1))
    for _ in range(2):
        clock.now += STEP_SECONDS
        history.sample()
    assert series.of("a")[-3:] == [1.0, None, 5.0]


def test_flows_and_partitions_are_bounded_to_those_looked_at_last_and_furthest_behind() -> None:
    clock = Clock()
    history = Still(lambda _flow: lag(), clock)
    many = lag(**{f"p{number}": number for number in range(MOST_PARTITIONS + 50)})
    series = history.look("web", many)
    assert "p0" not in series
    assert f"p{MOST_PARTITIONS + 49}" in series
    for number in range(MOST_FLOWS + 5):
        history.look(f"f{number}", many)
    assert len(history._flows) == MOST_FLOWS
    assert "web" not in history._flows


def test_equal_partitions_keep_their_series() -> None:
    clock = Clock()
    history = Still(lambda _flow: lag(), clock)
    first = {f"a{number}": 0 for number in range(MOST_PARTITIONS)}
    history.look("web", lag(**first))
    clock.now += STEP_SECONDS
    others = {f"b{number}": 0 for number in range(MOST_PARTITIONS)}
    series = history.look("web", lag(**others, **first))
    assert all(name in series for name in first)
