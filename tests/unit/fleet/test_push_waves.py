"""How a push goes through its waves, rule by rule."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import pytest

from flumeng.fleet.waves import (
    Applied,
    Await,
    Begin,
    Done,
    Ending,
    Event,
    Failed,
    Finish,
    Outcome,
    Revert,
    Reverted,
    RevertFailed,
    Settled,
    State,
    StopAsked,
    Tell,
    Tick,
    Wave,
    WaveBegins,
    WaveEnds,
    Waves,
)

CANARY, REST, LAST = "canary", "rest", "last"


class Push:
    """A run of ``Waves``; ``shut`` are the sites outside their windows."""

    def __init__(
        self,
        *waves: Wave,
        todo: Collection[str] | None = None,
        on_failure: Literal["stop", "rollback"] = "stop",
        shut: Collection[str] = (),
        wait_for_windows: bool = False,
        touched: Collection[str] = (),
    ) -> None:
        self.shut = set(shut)
        self.waves = Waves(
            waves,
            {name for wave in waves for name in wave.sites} if todo is None else todo,
            on_failure=on_failure,
            is_open=lambda site: site not in self.shut,
            wait_for_windows=wait_for_windows,
            touched=touched,
        )

    def __call__(self, *events: Event) -> list[str]:
        """The requested actions, in short."""
        told: list[str] = []
        for event in events:
            for asked in self.waves.handle(event):
                if isinstance(asked, Begin | Revert):
                    told.append(f"{type(asked).__name__.lower()} {asked.site}")
                elif isinstance(asked, WaveBegins):
                    told.append(f"wave {asked.wave}")
                elif isinstance(asked, WaveEnds):
                    told.append(f"wave {asked.wave} {asked.ending}")
                elif isinstance(asked, Await):
                    told.append(f"await {' '.join(asked.sites)}")
                elif isinstance(asked, Finish):
                    told.append(f"finish {asked.outcome.ending}")
        return told

    @property
    def outcome(self) -> Outcome:
        assert self.waves.outcome is not None
        return self.waves.outcome


def through(*sites: str) -> list[Event]:
    return [event for site in sites for event in (Applied(site), Settled(site), Done(site))]


def failed(site: str) -> Failed:
    return Failed(site, "lag grows", touched=True)


def away(site: str) -> Failed:
    return Failed(site, "no answer", touched=False)


def test_waves_follow_each_other_with_a_bounded_number_of_sites_at_once() -> None:
    push = Push(Wave(CANARY, ("a",)), Wave(REST, ("b", "c", "d"), parallel=2))
    assert push(Tick()) == ["wave canary", "begin a"]
    assert push(Applied("a"), Settled("a")) == []
    assert push(Done("a")) == ["wave canary done", "wave rest", "begin b", "begin c"]
    assert push(*through("c")) == ["begin d"]
    assert push(*through("d")) == []
    assert push(*through("b")) == ["wave rest done", "finish done"]
    assert push.outcome == Outcome(Ending.DONE, done=("a", "b", "c", "d"))


def test_parallel_0_begins_all_sites_of_a_wave() -> None:
    push = Push(Wave(REST, ("a", "b", "c"), parallel=0))
    assert push(Tick()) == ["wave rest", "begin a", "begin b", "begin c"]


def test_unchanged_sites_are_skipped_and_a_wave_of_them_is_not_mentioned() -> None:
    push = Push(Wave(CANARY, ("a",)), Wave(REST, ("b", "c")), Wave(LAST, ("d",)), todo={"c"})
    assert push(Tick()) == ["wave rest", "begin c"]
    assert push(*through("c")) == ["wave rest done", "finish done"]
    assert push.outcome == Outcome(Ending.DONE, done=("c",), skipped=("a", "b", "d"))


def test_push_with_nothing_to_do_is_over_at_once() -> None:
    assert Push(Wave(CANARY, ("a",)), todo=())(Tick()) == ["finish done"]
    assert Push()(Tick()) == ["finish done"]


def test_a_wave_that_fails_lets_those_under_way_end_and_begins_nothing_more() -> None:
    push = Push(Wave(CANARY, ("a", "b", "c"), parallel=2), Wave(REST, ("d",)))
    push(Tick())
    assert push(failed("a")) == []
    assert push(*through("b")) == ["wave canary failed", "finish failed"]
    assert push.outcome == Outcome(
        Ending.FAILED, CANARY, done=("b",), failed={"a": "lag grows"}, never_begun=("c", "d")
    )


def test_failures_within_the_limit_are_named_at_the_end() -> None:
    push = Push(Wave(CANARY, ("a", "b"), max_failures=1), Wave(REST, ("c",)))
    push(Tick())
    assert push(away("a")) == ["begin b"]
    assert push(*through("b")) == ["wave canary done with failures", "wave rest", "begin c"]
    assert push(*through("c")) == ["wave rest done", "finish done with failures"]
    assert push.outcome.failed == {"a": "no answer"}
    assert push.outcome.done == ("b", "c")


def test_failure_limit_is_that_of_each_wave() -> None:
    push = Push(Wave(CANARY, ("a",), max_failures=1), Wave(REST, ("b", "c"), max_failures=1))
    push(Tick(), away("a"))
    assert push(away("b")) == ["begin c"]
    assert push(away("c")) == ["wave rest failed", "finish failed"]


def test_a_failed_push_is_rolled_back_newest_wave_first() -> None:
    push = Push(
        Wave(CANARY, ("a",)),
        Wave(REST, ("b", "c"), parallel=2),
        Wave(LAST, ("d", "e", "f", "g"), parallel=2),
        on_failure="rollback",
    )
    push(Tick(), *through("a", "b", "c"))
    assert push(*through("d")) == ["begin f"]
    assert push(failed("e")) == []
    assert push(Applied("f"), Settled("f")) == []
    assert push(Done("f")) == ["wave last failed", "revert f", "revert e"]
    assert push(Reverted("f")) == ["revert d"]
    assert push(Reverted("d")) == []
    assert push(Reverted("e")) == ["revert c", "revert b"]
    assert push(RevertFailed("c", "no answer")) == []
    assert push(Reverted("b")) == ["revert a"]
    assert push(Reverted("a")) == ["finish rolled back"]
    assert push.outcome == Outcome(
        Ending.ROLLED_BACK,
        LAST,
        failed={"e": "lag grows"},
        never_begun=("g",),
        reverted=("a", "b", "d", "e", "f"),
        not_reverted={"c": "no answer"},
    )


def test_untouched_site_is_not_reverted() -> None:
    push = Push(Wave(CANARY, ("a", "b"), parallel=0), on_failure="rollback")
    push(Tick(), *through("a"))
    assert push(away("b")) == ["wave canary failed", "revert a"]
    assert push(Reverted("a")) == ["finish rolled back"]
    assert (push.outcome.failed, push.outcome.reverted) == ({"b": "no answer"}, ("a",))


def test_site_written_before_it_failed_is_reverted() -> None:
    push = Push(Wave(CANARY, ("a",)), on_failure="rollback")
    assert push(Tick(), Applied("a"), away("a"))[-1] == "revert a"


def test_site_touched_by_an_earlier_run_is_reverted_too() -> None:
    waves = (Wave(CANARY, ("a", "b")), Wave(REST, ("c", "d")))
    push = Push(*waves, todo={"b", "d"}, touched={"a", "d"}, on_failure="rollback")
    push(Tick())
    assert push(away("b")) == ["wave canary failed", "revert d"]
    assert push(Reverted("d")) == ["revert a"]
    push(Reverted("a"))
    assert (push.outcome.reverted, push.outcome.never_begun) == (("a", "d"), ())


def test_stop_request_begins_nothing_more() -> None:
    push = Push(Wave(CANARY, ("a", "b", "c"), parallel=2), on_failure="rollback")
    push(Tick())
    assert push(StopAsked()) == []
    assert push(*through("a")) == []
    assert push(failed("b")) == ["wave canary failed", "finish stopped"]
    assert push.outcome.not_reverted == {"a": "the push was stopped", "b": "the push was stopped"}


def test_stop_lists_the_done_and_the_remaining_sites() -> None:
    push = Push(Wave(CANARY, ("a", "b"), parallel=1), Wave(REST, ("c",)))
    push(Tick(), StopAsked())
    assert push(*through("a")) == ["wave canary stopped", "finish stopped"]
    assert push.outcome == Outcome(Ending.STOPPED, CANARY, done=("a",), never_begun=("b", "c"))


def test_stop_before_the_beginning_and_after_the_end() -> None:
    push = Push(Wave(CANARY, ("a",)))
    assert push(StopAsked()) == ["finish stopped"]
    assert push(StopAsked(), Tick()) == []


def test_stop_after_all_sites_have_begun_leaves_nothing_undone() -> None:
    push = Push(Wave(CANARY, ("a",)))
    push(Tick(), StopAsked())
    assert push(*through("a")) == ["wave canary done", "finish done"]


def test_stop_during_a_rollback_lists_the_sites_not_reverted() -> None:
    push = Push(Wave(CANARY, ("a",)), Wave(REST, ("b", "c")), on_failure="rollback")
    push(Tick(), *through("a", "b"))
    assert push(failed("c")) == ["wave rest failed", "revert c"]
    assert push(StopAsked()) == []
    assert push(Reverted("c")) == ["finish stopped"]
    assert push.outcome.reverted == ("c",)
    assert push.outcome.not_reverted == {"a": "the push was stopped", "b": "the push was stopped"}


def test_a_site_whose_window_is_shut_lets_others_go_first() -> None:
    push = Push(Wave(CANARY, ("a", "b", "c")), Wave(REST, ("d",)), shut={"a"})
    assert push(Tick()) == ["wave canary", "begin b"]
    assert push(*through("b")) == ["begin c"]
    assert push(*through("c")) == [
        "wave canary waiting for a window",
        "finish waiting for a window",
    ]
    assert push.outcome == Outcome(
        Ending.WAITING, CANARY, done=("b", "c"), never_begun=("a", "d"), shut=("a",)
    )


def test_push_waits_for_windows_on_request() -> None:
    push = Push(Wave(CANARY, ("a", "b")), shut={"a", "b"}, wait_for_windows=True)
    assert push(Tick()) == ["await a b"]
    assert push(Tick()) == []
    push.shut = {"a"}
    assert push(Tick()) == ["wave canary", "begin b"]
    assert push(*through("b")) == ["await a"]
    push.shut = set()
    assert push(Tick(), *through("a")) == ["begin a", "wave canary done", "finish done"]


def test_a_wait_for_windows_can_be_stopped() -> None:
    push = Push(Wave(CANARY, ("a",)), shut={"a"}, wait_for_windows=True)
    assert push(Tick(), StopAsked()) == ["await a", "finish stopped"]


def test_windows_do_not_hold_up_a_rollback() -> None:
    push = Push(Wave(CANARY, ("a",)), on_failure="rollback")
    push(Tick())
    push.shut = {"a"}
    assert push(failed("a")) == ["wave canary failed", "revert a"]


def test_each_step_of_a_site_is_reported_and_logged() -> None:
    push = Push(Wave(CANARY, ("a",)), on_failure="rollback")
    asked = [push.waves.handle(event) for event in (Tick(), Applied("a"), failed("a"))]
    told = [one.step for more in asked for one in more if isinstance(one, Tell)]
    assert told == push.waves.log
    assert [str(step) for step in told] == [
        "a: pending -> writing",
        "a: writing -> settling",
        "a: settling -> failed (lag grows)",
        "a: failed -> reverting",
    ]
    assert push.waves.states == {"a": State.REVERTING}


@pytest.mark.parametrize("event", [Done("a"), Settled("a"), Reverted("a"), RevertFailed("a", "")])
def test_impossible_event_raises_with_the_steps_of_the_site(event: Event) -> None:
    push = Push(Wave(CANARY, ("a",)))
    push(Tick())
    with pytest.raises(AssertionError, match=r"a is writing, got .*: a: pending -> writing"):
        push(event)


def test_a_site_of_no_wave_is_refused() -> None:
    with pytest.raises(AssertionError, match="a site that is in no wave"):
        Push(Wave(CANARY, ("a",)), todo={"z"})
