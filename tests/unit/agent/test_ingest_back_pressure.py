"""The cause that holds a flow is one state for people, also when it comes and goes."""

from __future__ import annotations

from flumeng.agent.ingest.back_pressure import GAP_SECONDS, BackPressure, Held


def test_flow_is_held_until_all_causes_are_gone() -> None:
    pressure = BackPressure()
    assert pressure.held(50.0) == Held("", 0.0, 0.0)
    pressure.hold("journal", "journal full", 100.0)
    pressure.hold("choke", "choked", 101.0)
    assert (pressure.paused, pressure.held(103.0)) == (True, Held("journal full", 3.0, 3.0))
    pressure.release("journal", 104.0)
    assert (pressure.paused, pressure.held(105.0)) == (True, Held("choked", 5.0, 5.0))
    pressure.release("choke", 106.0)
    assert not pressure.paused
    later = 106.0 + GAP_SECONDS + 1
    assert pressure.held(later) == Held("", 0.0, 6.0)
    pressure.hold("choke", "choked", later)
    assert pressure.held(later + 1) == Held("choked", 1.0, 7.0)


def test_cause_that_returns_soon_has_not_ended() -> None:
    pressure = BackPressure()
    for now in range(20):
        pressure.hold("choke", "choked", now)
        assert pressure.held(now + 0.1).seconds == now + 0.1
        pressure.release("choke", now + 0.5)
        assert pressure.held(now + 0.9).by == "choked"
    assert pressure.held(19 + 0.5 + GAP_SECONDS) == Held("choked", 19 + 0.5 + GAP_SECONDS, 19.5)
    assert pressure.held(100.0) == Held("", 0.0, 19.5)


def test_total_of_held_seconds_never_decreases() -> None:
    pressure = BackPressure()
    totals = []
    for step in range(200):
        now = step * 0.7
        if step % 7 in (1, 3):
            pressure.hold("journal", "journal full", now)
        if step % 7 in (2, 5):
            pressure.release("journal", now)
        totals.append(round(pressure.held(now).total_seconds, 6))
    assert totals == sorted(totals)
    assert totals[-1] > 40
