"""When a journal will be full: by arithmetic, and by letting it fill.

Protects that "full in 40 min" neither alarms about a journal that shrinks nor is silent about one
that fills.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from flumeng.control.queries.journals import full_seconds
from flumeng.journal.log.progress_history import AGO_SECONDS
from flumeng.journal.serving.account import Account

events = st.integers(0, 10**9)


def journal(safe: int, acked: int, before: tuple[int, int] | None, room: int, size: int) -> Account:
    """A journal whose events have ``size`` bytes each; ``before``: safe and acked a minute ago."""
    return Account(
        term=1,
        durability="group",
        floor=0,
        acked=acked,
        safe=safe,
        bytes=safe * size,
        max_bytes=room,
        lost=0,
        waits_at=None,
        closed=False,
        oldest_unacked_us=None,
        safe_minute_ago=before[0] if before else None,
        acked_minute_ago=before[1] if before else None,
    )


@given(
    arrived=st.integers(0, 10**7),
    delivered=st.integers(0, 10**7),
    waiting=st.integers(0, 10**7),
    size=st.integers(1, 10_000),
    room=st.integers(1, 10**13),
)
def test_journal_is_full_when_predicted_at_steady_rates(
    arrived: int, delivered: int, waiting: int, size: int, room: int
) -> None:
    """``arrived`` and ``delivered`` in each minute; ``waiting``: unacked a minute ago."""
    delivered = min(delivered, waiting + arrived)
    acked_ago, safe_ago = 5, 5 + waiting
    account = journal(safe_ago + arrived, acked_ago + delivered, (safe_ago, acked_ago), room, size)
    held = size * (waiting + arrived - delivered)
    seconds = full_seconds(account)
    if held >= room:
        assert seconds == 0.0
    elif arrived <= delivered:
        assert seconds is None
    else:
        assert seconds is not None
        minutes = seconds / AGO_SECONDS
        later = held + size * (arrived - delivered) * minutes
        assert abs(later - room) <= 1e-6 * room + size


@given(acked=events, waiting=events, before=st.tuples(events, events), room=st.integers(1, 10**12))
def test_more_room_is_never_full_sooner(
    acked: int, waiting: int, before: tuple[int, int], room: int
) -> None:
    assume(before[0] >= before[1])
    seconds = full_seconds(journal(acked + waiting, acked, before, room, 10))
    more = full_seconds(journal(acked + waiting, acked, before, 2 * room, 10))
    assert seconds is None or seconds >= 0
    if seconds is not None and more is not None:
        assert more >= seconds


@given(acked=events, waiting=st.integers(1, 10**6))
def test_unknown_growth_predicts_nothing(acked: int, waiting: int) -> None:
    assert full_seconds(journal(acked + waiting, acked, None, 10**12, 10)) is None
    filling = journal(acked + waiting, acked, (0, 0), 1, 10)
    assert full_seconds(filling) == 0.0
    assert full_seconds(replace(filling, closed=True)) is None
