"""The protocol of replicas, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flumeng.journal.replication import follower, primary
from flumeng.journal.replication.follower import Cut, Fence, Follower, Keep, Reply, Restart, Write
from flumeng.journal.replication.history import Log, Start, agreed
from flumeng.journal.replication.membership import Membership
from flumeng.journal.replication.messages import (
    Began,
    Begin,
    Frames,
    Persisted,
    Refused,
    Reset,
    Unmatched,
)
from flumeng.journal.replication.primary import Change, Primary, Send
from flumeng.platform.errors import ConflictError, CorruptError, UserError
from zkschema.records import Journal

ONE = Log(0, 6, 6, (Start(1, 0), Start(2, 4)))
"""Events 0 to 3 are of term 1, 4 and 5 of term 2."""


@pytest.mark.parametrize(
    ("other", "end"),
    [
        (ONE, 6),
        (ONE.cut(5), 5),
        (Log(), 0),
        (Log(0, 9, 9, (Start(1, 0),)), 4),  # without term 2
        (Log(0, 9, 9, (Start(1, 0), Start(3, 2))), 2),  # term 3 began without the end of term 1
        (Log(0, 9, 9, (Start(1, 0), Start(3, 8))), 4),
        (Log(4, 9, 9, (Start(1, 0), Start(3, 4))), 4),  # nothing above the floor is the same
        (Log(5, 9, 9, (Start(2, 5),)), 6),
    ],
)
def test_logs_agree_up_to_the_last_event_of_equal_term(other: Log, end: int) -> None:
    assert agreed(ONE, other) == end
    assert agreed(other, ONE) == end


def test_a_history_knows_the_terms_of_a_range() -> None:
    assert ONE.terms(0, 6) == (Start(1, 0), Start(2, 4))
    assert ONE.terms(2, 4) == (Start(1, 2),)
    assert ONE.terms(5, 6) == (Start(2, 5),)


def test_cut_log_forgets_terms_without_events() -> None:
    assert ONE.cut(4) == Log(0, 4, 4, (Start(1, 0),))
    assert ONE.cut(5) == Log(0, 5, 5, (Start(1, 0), Start(2, 4)))
    assert ONE.cut(0).last_term == 0


def test_a_log_that_grows_keeps_the_first_seq_of_each_term() -> None:
    grown = ONE.extended([Start(2, 5), Start(4, 7)], 9)
    assert grown == Log(0, 9, 6, (Start(1, 0), Start(2, 4), Start(4, 7)))


MEMBERSHIP = Membership("a", 3, "n0/x", ("n0/x", "n1/x"), ("n0", "n1", "n2"))


def test_a_promotion_begins_a_term_without_the_primary_before() -> None:
    assert MEMBERSHIP.promoted("n1/x") == replace(
        MEMBERSHIP, term=4, primary="n1/x", in_sync=("n1/x",)
    )


def test_a_replica_that_is_not_in_sync_is_not_promoted() -> None:
    with pytest.raises(ConflictError, match="not in sync"):
        MEMBERSHIP.promoted("n2/x")


def test_unclean_promotion_begins_another_lineage() -> None:
    promoted_unclean = MEMBERSHIP.promoted_unclean("n3/x", "b")
    assert promoted_unclean == Membership("b", 4, "n3/x", ("n3/x",), ("n0", "n1", "n2", "n3"))


def test_restarted_primary_has_a_term_of_its_own() -> None:
    assert MEMBERSHIP.restarted() == replace(MEMBERSHIP, term=4)
    assert MEMBERSHIP.restarted(least_term=7).term == 7


def test_primary_does_not_leave_the_replicas_in_sync() -> None:
    assert MEMBERSHIP.without("n1/x").in_sync == ("n0/x",)
    with pytest.raises(UserError, match="promote another"):
        MEMBERSHIP.without("n0/x")


def test_joining_replica_replaces_an_older_one_on_its_node() -> None:
    assert MEMBERSHIP.joined("n2/x").in_sync == ("n0/x", "n1/x", "n2/x")
    assert MEMBERSHIP.joined("n1/y").in_sync == ("n0/x", "n1/y")


def test_membership_survives_the_round_trip_through_its_record() -> None:
    journal = Journal(flow="web", node="n0", primary="", term=0, in_sync=())
    assert Membership.of(MEMBERSHIP.put_into(journal)) == MEMBERSHIP
    with pytest.raises(CorruptError, match="n9"):
        Membership.of(replace(MEMBERSHIP.put_into(journal), primary="n9"))


REPLICA = Follower("n1/x", "a", ONE, 2, 3)


def test_replica_cuts_events_that_the_primary_lacks_after_its_begin() -> None:
    first = Log(0, 8, 8, (Start(1, 0), Start(3, 5)))
    replica, actions = follower.begin(replace(REPLICA, log=ONE.cut(4)), Begin("a", 4, first))
    assert actions == [Fence(4), Reply(Began(4, "n1/x", 4))]
    replica, actions = follower.begin(REPLICA, Begin("a", 4, first))
    assert actions == [Fence(4), Cut(4), Reply(Began(4, "n1/x", 4))]
    assert replica.log == Log(0, 4, 4, (Start(1, 0),))


def test_replica_keeps_its_log_until_the_primary_of_a_term_sends_its_log() -> None:
    frames = Frames(3, 6, 7, (Start(3, 6),), 6, 0)
    assert follower.take(REPLICA, frames) == (REPLICA, [Reply(Unmatched(3, "n1/x"))])


def test_replica_refuses_an_old_term() -> None:
    old = [
        follower.begin(REPLICA, Begin("a", 1, Log())),
        follower.take(REPLICA, Frames(1, 6, 7, (Start(1, 6),), 0, 0)),
        follower.reset(REPLICA, Reset(1, 9)),
    ]
    assert old == [(REPLICA, [Reply(Refused(2))])] * 3


def test_replica_of_another_lineage_restarts() -> None:
    replica, actions = follower.begin(REPLICA, Begin("b", 3, Log(2, 9, 9, (Start(2, 2),))))
    assert actions == [Fence(3), Restart(2, "b"), Reply(Began(3, "n1/x", 2))]
    assert replica == Follower("n1/x", "b", Log(2, 2, 2), 3, 2, matched=True)


def test_replica_without_common_events_restarts() -> None:
    """Its event 4 is not the one that the primary has trimmed."""
    first = Log(5, 9, 9, (Start(3, 4),))
    _replica, actions = follower.begin(REPLICA, Begin("a", 4, first))
    assert actions == [Fence(4), Restart(5, "a"), Reply(Began(4, "n1/x", 5))]


def test_replica_in_sync_that_differs_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="seq 2, below 3"):
        follower.begin(REPLICA, Begin("a", 3, Log(0, 2, 2, (Start(1, 0),))))


def test_replica_answers_when_its_writes_are_synced() -> None:
    replica, _ = follower.begin(REPLICA, Begin("a", 3, ONE))
    replica, actions = follower.take(replica, Frames(3, 6, 8, (Start(3, 6),), 7, 2))
    assert actions == [Write(6, 8), Keep(6, 2)]
    assert follower.synced(replica, 8)[1] == [Reply(Persisted(3, "n1/x", 8))]


def test_a_replica_takes_no_events_behind_a_gap() -> None:
    replica, _ = follower.begin(REPLICA, Begin("a", 3, ONE))
    same, actions = follower.take(replica, Frames(3, 7, 8, (Start(3, 7),), 7, 2))
    assert (same, actions) == (replica, [Reply(Persisted(3, "n1/x", 6, gap=True))])


def leader(*in_sync: str) -> Primary:
    membership = replace(MEMBERSHIP, in_sync=("n0/x", *in_sync))
    return primary.started("n0/x", ONE, 3, membership, 7)[0]


def test_primary_answers_when_each_replica_in_sync_has_the_event() -> None:
    state = leader("n1/x")
    assert state.answered == 3
    state, _ = primary.received(state, "n1", Began(3, "n1/x", 6))
    state, actions = primary.appended(state, 7)
    frames = Frames(3, 6, 7, (Start(3, 6),), 6, 0)
    assert actions == [Send("n1", frames)]
    state, _ = primary.synced(state, 7)
    assert state.answered == 6
    state, _ = primary.received(state, "n1", Persisted(3, "n1/x", 7))
    assert state.answered == 7


def test_late_replica_counts_until_zookeeper_has_removed_it() -> None:
    state = leader("n1/x")
    state, actions = primary.late(state, "n1")
    alone = replace(MEMBERSHIP, in_sync=("n0/x",))
    assert actions == [Change(7, alone)]
    assert state.answered == 3
    state, _ = primary.changed(state, alone, 8)
    assert state.answered == 6


def test_replica_joins_with_all_that_the_term_began_with() -> None:
    """Events answered in earlier terms may lie above the checkpoint that is known."""
    state = leader("n1/x")
    state, actions = primary.received(state, "n2", Began(3, "n2/x", 5))
    assert [action for action in actions if isinstance(action, Change)] == []
    state, actions = primary.received(state, "n2", Persisted(3, "n2/x", 6))
    assert actions == [Change(7, state.membership.joined("n2/x"))]
    assert state.counted == ("n0/x", "n1/x", "n2/x")


def test_replica_whose_disk_was_lost_leaves_those_in_sync() -> None:
    _, actions = primary.received(leader("n1/x"), "n1", Began(3, "n1/y", 0))
    assert Change(7, replace(MEMBERSHIP, in_sync=("n0/x",))) in actions


def test_primary_stops_at_the_first_sign_of_a_later_term() -> None:
    refused, _ = primary.received(leader("n1/x"), "n1", Refused(4))
    promoted, _ = primary.changed(leader("n1/x"), MEMBERSHIP.promoted("n1/x"), 8)
    assert refused.over
    assert promoted.over
    assert not refused.takes
    assert primary.received(refused, "n1", Began(3, "n1/x", 6)) == (refused, [])


def test_primary_takes_nothing_with_too_few_replicas_in_sync() -> None:
    assert not replace(leader(), min_in_sync=2).takes
    assert replace(leader("n1/x"), min_in_sync=2).takes


def test_replica_that_lacks_trimmed_events_restarts() -> None:
    state, _ = primary.trimmed(replace(leader(), checkpoint=6), 4, 4)
    _, actions = primary.received(state, "n2", Began(3, "n2/x", 2))
    assert actions[0] == Send("n2", Reset(3, 4))


def test_joining_replica_that_is_late_is_not_waited_for() -> None:
    state, _ = primary.received(leader(), "n2", Began(3, "n2/x", 4))
    assert state.counted == ("n0/x", "n2/x")
    state, _ = primary.late(state, "n2")
    assert state.counted == ("n0/x",)
    assert not state.peers["n2"].begun
