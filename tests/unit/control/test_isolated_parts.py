"""Isolated sinks and branches: their flows, which are made, changed, paused and deleted with the
flow that they are parts of."""

from __future__ import annotations

import pytest

from flumeng.config import Place, SpecError, check_flow, parse_flow, parse_written, parts_of
from flumeng.config.component import Upstream
from flumeng.config.derived_texts import replay_text
from flumeng.control.commands.flows import (
    apply_flow,
    apply_flows,
    delete_flow,
    rollback_flow,
    set_flow_state,
    set_flow_states,
)
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.revisions import RefusedError
from flumeng.control.planner.deleted_flows import drop_of
from flumeng.control.queries import journal_causes, overview
from flumeng.control.queries.causes import Cause
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.snapshot import discovered
from flumeng.control.snapshot.partitions import ack_path
from flumeng.control.snapshot.snapshot import FlowView, Snapshot
from flumeng.control.zookeeper import ABSENT, ANY, Put, Version, Versioned, tree
from flumeng.journal.serving.account import Account
from flumeng.platform.errors import ConflictError, UserError
from tests.testkit.scripted_store import ScriptedStore
from tests.testkit.store import FakeStore
from zkschema import paths, records

BY = ("a", "", 0.0)
HEAD = "flow: web\nsources: [{syslog: {listen: '127.0.0.1:5514'}}]\n"
SIMPLE = HEAD + "sinks:\n  - noop\n"
LINES = "multiline: {preset: java}\n"
WITH = SIMPLE + "  - {files: {path: /data/web}, isolated: true}\n"
TREE = (
    HEAD
    + """
delivery: exactly-once
batch: {seconds: 2}
filters:
  - parse: {format: syslog}
    on_error: dead-letter
dead_letters: {files: {path: /data/dead, format: json}}
branches:
  - name: errors
    when: severity <= 3
    filters: [{parse: {format: json, into: j}, on_error: dead-letter}]
    sinks:
      - files: {path: /data/errors}
      - {files: {path: /data/alarms}, isolated: true}
  - name: logins
    when: facility = 4
    isolated: true
    filters: [{parse: {format: json, into: j}, on_error: dead-letter}]
    sinks: [files: {path: /data/logins}]
    branches:
      - {name: root, when: "app = 'su'", isolated: true, sinks: [files: {path: /data/root}]}
      - {name: users, otherwise: true, sinks: [files: {path: /data/users}]}
  - name: rest
    otherwise: true
    isolated: true
    sinks: [files: {path: /data/rest}]
"""
)


def states(store: FakeStore) -> dict[str, str]:
    names = store.children(paths.flows())
    found = store.read_each([paths.flow(name) for name in names])
    return {
        name: one.value.state
        for name, one in zip(names, found, strict=True)
        if isinstance(one, Versioned)
    }


def text_of(store: FakeStore, flow: str) -> str:
    record = store.read(paths.flow(flow))
    assert record is not None
    found = store.read(paths.revision(flow, str(record.value.revision)))
    assert found is not None
    return found.value.text


def places(text: str) -> list[str]:
    return [leaf.place for leaf in parse_flow(text).leaves]


def test_flow_runs_the_remaining_branches_and_each_part_its_own_path() -> None:
    own = check_flow(TREE)
    assert [leaf.place for leaf in own.leaves] == ["branches[errors].sinks[0].files"]
    assert len(parse_written(TREE).leaves) == 6
    parts = parts_of(TREE)
    assert {name: places(text) for name, text in parts.items()} == {
        "web~errors~files": ["branches[errors].sinks[0].files"],
        "web~logins": [
            "branches[logins].sinks[0].files",
            "branches[logins].branches[users].sinks[0].files",
        ],
        "web~logins~root": ["branches[logins].branches[root].sinks[0].files"],
        "web~rest": ["branches[rest].sinks[0].files"],
    }
    for name, text in parts.items():
        spec = check_flow(text)
        assert (spec.flow, spec.delivery, spec.batch.seconds) == (name, "exactly-once", 2)
        assert spec.sources[0].options.upstream == Upstream("web", filters=False)
        assert not parts_of(text)


def test_each_dead_letter_is_written_once() -> None:
    """By the flow that has the filter; every other one that runs it drops the event."""
    ends = {
        name: [(one.name, [part.on_error for part in one.segment.filters]) for one in spec.segments]
        for name, text in {"web": TREE, **parts_of(TREE)}.items()
        for spec in [parse_flow(text)]
    }
    assert ends == {
        "web": [("", ["dead-letter"]), ("errors", ["dead-letter"])],
        "web~errors~files": [("", ["drop"]), ("errors", ["drop"])],
        "web~logins": [("", ["drop"]), ("logins", ["dead-letter"]), ("logins/users", [])],
        "web~logins~root": [("", ["drop"]), ("logins", ["drop"]), ("logins/root", [])],
        "web~rest": [("", ["drop"]), ("rest", [])],
    }


def test_otherwise_takes_the_events_of_no_sibling_in_any_part() -> None:
    neither = (
        "(NOT (severity <= 3) OR (severity <= 3) IS NULL) AND "
        "(NOT (facility = 4) OR (facility = 4) IS NULL)"
    )
    parts = {name: parse_flow(text) for name, text in parts_of(TREE).items()}
    (rest,) = parts["web~rest"].branches
    assert (rest.when, rest.otherwise) == (neither, False)
    users = parts["web~logins"].branches[0].branches[-1]
    assert users.when == "(NOT (app = 'su') OR (app = 'su') IS NULL)"
    kept = parse_flow(TREE.replace("otherwise: true\n    isolated: true", "otherwise: true"))
    assert kept.branches[-1].when == neither
    alone = HEAD + "sinks: [noop]\nbranches: [{name: all, otherwise: true, sinks: [noop]}]\n"
    assert parse_flow(alone).branches[0].otherwise


def problem(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        check_flow(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WITH.replace("  - noop\n", ""), "sinks[0].isolated: all sinks and branches are isolated"),
        (
            WITH + "  - {files: {path: /data/b}, isolated: true}\n",
            "line 6: sinks[2].isolated: this part and sinks[1] would both be named web~files: put "
            "it into a branch with a name of its own",
        ),
        (
            WITH + "branches: [{name: a, sinks: [{noop: , isolated: true}]}]\n",
            "branches[0]: all sinks and branches in it are isolated",
        ),
        (WITH + "rollout: {canary: 1}\n", "rollout: a rollout would write events"),
        (
            WITH.replace(
                "syslog: {listen: '127.0.0.1:5514'}", "kafka: {brokers: ['k:1'], topics: [t]}"
            ),
            "sinks[1].isolated: every flow reads Kafka at its own pace",
        ),
        (
            HEAD
            + "sinks: [noop]\nbranches:\n"
            + "".join(
                f"{'  ' * d}- name: {'n' * 63}\n{'  ' * d}  sinks: [noop]\n{'  ' * d}  branches:\n"
                for d in range(3)
            )
            + f"{'  ' * 3}- {{name: {'x' * 63}, isolated: true, sinks: [noop]}}\n",
            "expected at most 200 characters",
        ),
        (
            HEAD + "sinks: [noop, {first_of: {sinks: [noop, {console: , isolated: true}]}}]\n",
            "sinks[1].first_of.sinks[1]: expected one sink in each entry",
        ),
        (
            HEAD + "sinks: [noop]\ndead_letters: {noop: , isolated: true}\n",
            "dead_letters: expected one sink",
        ),
        (
            HEAD + f"branches:\n  - {{name: a, when: \"host = '{'x' * 5000}'\", sinks: [noop]}}\n"
            "  - {name: b, otherwise: true, isolated: true, sinks: [noop]}\n",
            "branches[1].isolated: as the flow web~b: branches[0].when: expected at most 8192",
        ),
    ],
)
def test_impossible_isolation_is_reported(text: str, expected: str) -> None:
    assert expected in problem(text)


def test_isolated_group_of_sinks_is_one_part() -> None:
    text = SIMPLE + "  - {first_of: [{files: {path: /a}}, console], isolated: true}\n"
    (part,) = parts_of(text)
    assert part == "web~first-of"


def test_isolated_part_reads_the_same_upstream_flow() -> None:
    text = WITH.replace("syslog: {listen: '127.0.0.1:5514'}", "flow: {name: other}")
    (part,) = parts_of(text).values()
    assert parse_flow(part).sources[0].options.upstream == Upstream("other", filters=False)


def test_parts_are_made_with_their_flow(store: FakeStore) -> None:
    made = [one for part in apply_flows(Operator(store, *BY), {"web": WITH}) for one in part]
    assert [(one.flow, one.revision) for one in made] == [("web", 1), ("web~files", 1)]
    assert store.children(paths.acks("web")) == ["main", "web~files"]
    assert store.read(paths.partitions("web~files")) is None
    (entry,) = store.children(paths.audits())
    said = store.read(paths.audit(entry))
    assert said is not None
    assert said.value.command == "flow apply web (revision 1), web~files (revision 1)"


def test_a_part_cannot_be_applied_rolled_back_or_deleted_alone(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WITH)
    (part,) = parts_of(WITH).values()
    with pytest.raises(RefusedError, match="web~files is an isolated part: apply its flow web"):
        apply_flow(Operator(store, *BY), part)
    with pytest.raises(UserError, match="roll back the whole flow"):
        rollback_flow(Operator(store, *BY), "web~files", 1)
    with pytest.raises(UserError, match="apply that flow without it"):
        delete_flow(Operator(store, *BY), "web~files")


def acked(store: FakeStore, flow: str, partition: str, offset: int, **more: object) -> None:
    path = ack_path(flow, partition)
    found = store.read(path)
    record = records.Ack(epoch=3, offset=offset, **more)  # type: ignore[arg-type]
    store.write(path, record, found.version if found else ABSENT)


A, B = "web.n1.0.aa", "web.n2.0.bb"


def test_a_new_part_begins_where_its_flow_is(store: FakeStore) -> None:
    """And behind the batch that is decided, which goes into all sinks of before."""
    apply_flow(Operator(store, *BY), SIMPLE)
    acked(store, "web", A, 700)
    acked(store, "web", B, 20)
    decided = records.Intent(
        epoch=3, series="s", number=4, revision=1, splits=1, ranges={A: (700, 900)}
    )
    store.write(paths.intent("web", "collect.0"), decided, ABSENT)
    set_flow_state(Operator(store, *BY), "web", "suspended")
    apply_flow(Operator(store, *BY), WITH)
    (found,) = discovered.read(store, ["web~files"])
    assert isinstance(found, Versioned)
    starts = {name: one.start for name, one in found.value.partitions.items()}
    assert starts == {f"{A}@flow": 900, f"{B}@flow": 20}
    assert found.value.scope is None
    assert states(store) == {"web": "suspended", "web~files": "suspended"}


def test_new_part_of_joined_lines_begins_at_the_emitted_position(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), SIMPLE + LINES)
    joined = records.Joined(offset=700, emitted=720, rules="r")
    acked(store, "web", A, 700, joined=joined)
    apply_flow(Operator(store, *BY), WITH + LINES)
    ack = store.read(ack_path("web~files", f"{A}@flow"))
    assert ack is not None
    assert (ack.value.epoch, ack.value.offset, ack.value.emitted) == (0, 700, 720)


@pytest.mark.parametrize(
    ("before", "after", "start"),
    [("", LINES, 900), (LINES, "", 700), (LINES, LINES, 700)],
    ids=["added", "removed", "kept"],
)
def test_start_of_a_new_part_depends_on_the_revision_that_decided_the_batch(
    store: FakeStore, before: str, after: str, start: int
) -> None:
    """That revision repeats the batch, for all its sinks, so a new part begins behind it. With
    ``multiline`` nobody knows before where its last event begins: the part skips none."""
    apply_flow(Operator(store, *BY), SIMPLE + before)
    acked(store, "web", A, 700)
    decided = records.Intent(
        epoch=3, series="s", number=4, revision=1, splits=1, ranges={A: (700, 900)}
    )
    store.write(paths.intent("web", "collect.0"), decided, ABSENT)
    apply_flow(Operator(store, *BY), WITH + after)
    (found,) = discovered.read(store, ["web~files"])
    assert isinstance(found, Versioned)
    assert {name: one.start for name, one in found.value.partitions.items()} == {f"{A}@flow": start}


def test_parts_are_updated_and_rolled_back_with_their_flow(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WITH)
    other = WITH + "filters: [where: \"host = 'a'\"]\n"
    apply_flow(Operator(store, *BY), other)
    assert parse_flow(text_of(store, "web~files")).filters
    rollback_flow(Operator(store, *BY), "web", 1)
    assert not parse_flow(text_of(store, "web~files")).filters
    before = store.children(paths.revisions("web~files"))
    apply_flow(Operator(store, *BY), WITH.replace("noop", "console"))
    assert store.children(paths.revisions("web~files")) == before == ["1", "2", "3"]


def test_removed_part_is_deleted_and_its_unread_events_are_reported(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WITH)
    acked(store, "web", A, 700)
    acked(store, "web", B, 20)
    acked(store, "web~files", f"{A}@flow", 650)
    acked(store, "web~files", f"{B}@flow", 25)
    applied = apply_flow(Operator(store, *BY), SIMPLE)
    assert [str(one) for one in applied.left] == [
        "flow web~files is deleted; its sinks lack 50 events that flow web has delivered, for "
        "good; its sinks have 5 events that flow web lacks yet"
    ]
    assert states(store) == {"web": "running", "web~files": "deleted"}
    with pytest.raises(RefusedError, match="web~files is being deleted") as caught:
        apply_flow(Operator(store, *BY), WITH)
    assert caught.value.refused.keys() == {"web"}


def test_a_flow_is_deleted_with_its_parts_and_for_no_reader(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WITH)
    copy = "flow: copy\nsources: [{flow: {name: web}}]\nsinks: [noop]\n"
    apply_flow(Operator(store, *BY), copy)
    with pytest.raises(ConflictError, match="flow web is read by copy: delete"):
        delete_flow(Operator(store, *BY), "web")
    store.remove(paths.cursor("web", "copy"), store.read(paths.flow("copy")).version)  # type: ignore[union-attr]
    delete_flow(Operator(store, *BY), "web", discard=True)
    assert states(store) == {"copy": "running", "web": "deleted", "web~files": "deleted"}
    record = store.read(paths.flow("web~files"))
    assert record is not None
    assert record.value.discard


def test_state_commands_apply_to_the_flow_with_its_parts_or_to_one_part(store: FakeStore) -> None:
    apply_flow(Operator(store, *BY), WITH)
    assert set_flow_state(Operator(store, *BY), "web", "suspended")
    assert states(store) == {"web": "suspended", "web~files": "suspended"}
    assert set_flow_state(Operator(store, *BY), "web~files", "running")
    assert states(store) == {"web": "suspended", "web~files": "running"}
    assert set_flow_state(Operator(store, *BY), "web", "running")
    assert states(store) == {"web": "running", "web~files": "running"}
    assert not set_flow_state(Operator(store, *BY), "web", "running")
    (outcome,) = set_flow_states(Operator(store, *BY), ["web"], "stopped")
    assert outcome.changed
    assert states(store) == {"web": "stopped", "web~files": "stopped"}
    both = list(set_flow_states(Operator(store, *BY), ["web", "web~files"], "running"))
    assert [one.changed for one in both] == [True, True]


@pytest.mark.slow
def test_a_thousand_flows_with_parts_are_applied(store: FakeStore) -> None:
    texts = {
        f"web{n}": WITH.replace("web", f"web{n}").replace("5514", str(2000 + n))
        for n in range(1000)
    }
    for text in texts.values():
        check_flow(text)
    made = [one for part in apply_flows(Operator(store, *BY), texts) for one in part]
    assert len(made) == 2000
    assert not [
        one for part in apply_flows(Operator(store, *BY), texts) for one in part if one.changed
    ]


def test_status_names_the_reader_that_fills_a_journal_before_it_is_full(store: FakeStore) -> None:
    """The slowest, once it keeps half of the journal's limit, with advice."""
    apply_flow(Operator(store, *BY), WITH)
    set_flow_state(Operator(store, *BY), "web~files", "suspended")
    flows = overview.flows(store)
    acked(store, "web", A, 900)
    acked(store, "web~files", f"{A}@flow", 390)
    acked(store, "web", B, 50)
    acked(store, "web~files", f"{B}@flow", 50)

    def told(**accounts: Account) -> list[Cause]:
        named = {{"a": A, "b": B}[name]: one for name, one in accounts.items()}
        return list(journal_causes.of_kept(flows, ReadCache(store), named, now=5000))

    def account(size: int, safe: int = 1000, oldest: float | None = None) -> Account:
        oldest_us = None if oldest is None else int(oldest * 1e6)
        return Account(1, "disk", 0, 0, safe, size, 1000, 0, None, False, oldest_us)

    assert not told(a=account(800), b=account(900, 51))
    (cause,) = told(a=account(1000), b=account(900, 51))
    assert cause.what == (
        f"journal {A} of flow web keeps 610 events that flow web~files (suspended) has not read, "
        "61% of `max_bytes`; at 100% the senders of flow web wait"
    )
    assert cause.advice == (
        "`flumeng flow resume web~files`, or raise `journal.max_bytes` of flow web; to give up "
        "its unread events: apply flow web without it"
    )
    store.write(paths.cursor("web", "notebook"), None, ABSENT)
    (cause,) = told(a=account(1000))
    assert "keeps 1,000 events that the reader notebook has not read" in cause.what
    assert cause.advice.endswith("`flumeng cursor end web notebook`")
    store.remove(paths.cursor("web", "notebook"), ANY)
    acked(store, "web", A, 100)
    (cause,) = told(a=account(1000))
    assert "keeps 900 events that flow web has not read" in cause.what
    assert cause.advice.startswith("find out why it is behind (`flumeng flow lag web`)")
    batch_seconds = next(flow.batch_seconds for flow in flows if flow.flow == "web")
    assert not told(a=account(1000, oldest=5000 - batch_seconds / 2))
    assert told(a=account(1000, oldest=5000 - batch_seconds - 1))


def seen(state: str, drained: frozenset[str] = frozenset(), **parts: str) -> Snapshot:
    """The flow web, which has a journal, and these of its parts."""
    views = {
        name: FlowView(name, records.Flow(revision=1, state=said), Version(0), Place())
        for name, said in {
            "web": state,
            **{f"web~{part}": of for part, of in parts.items()},
        }.items()
    }
    journal = records.Journal(
        flow="web", node="n1", primary="n1", term=1, in_sync=(), closed=True, end=9
    )
    return Snapshot(views, {}, {A: journal}, drained, frozenset(views))


def test_a_part_of_a_flow_that_ends_reads_its_journals_to_their_end() -> None:
    assert not seen("running", files="deleted").has_undelivered("web~files")
    assert not seen("suspended", files="stopped").has_undelivered("web~files")
    assert seen("deleted", files="deleted").has_undelivered("web~files")
    assert seen("stopped", files="stopped").has_undelivered("web~files")
    own = frozenset({A})
    assert not seen("deleted", own, files="deleted").has_undelivered("web")
    assert seen("deleted", own, files="deleted").has_undelivered("web~files")
    every = frozenset({A, f"web~files/{A}@flow"})
    assert not seen("deleted", every, files="deleted").has_undelivered("web~files")


def test_flow_is_removed_after_its_parts() -> None:
    """Its cursors are theirs too."""
    every = frozenset({A, f"web~files/{A}@flow"})
    both = seen("deleted", every, files="deleted")
    assert drop_of(both.flows["web"], both) is None
    assert drop_of(both.flows["web~files"], both) is not None
    alone = seen("deleted", every)
    assert drop_of(alone.flows["web"], alone) is not None


def flows_written(store: ScriptedStore) -> list[list[str]]:
    """Of each transaction that writes flows."""
    written = [
        sorted(w.path.name for w in writes if isinstance(w, Put) and w.path.row is paths.flow)
        for writes in store.transactions
    ]
    return [flows for flows in written if flows]


def test_a_flow_and_its_parts_change_in_one_transaction() -> None:
    store = ScriptedStore()
    tree.init(store)
    other = "filters: [where: \"host = 'a'\"]\n"
    apply_flow(Operator(store, *BY), WITH)
    apply_flow(Operator(store, *BY), WITH + other)
    rollback_flow(Operator(store, *BY), "web", 1)
    set_flow_state(Operator(store, *BY), "web", "suspended")
    list(set_flow_states(Operator(store, *BY), ["web"], "running"))
    apply_flow(Operator(store, *BY), SIMPLE)
    assert flows_written(store) == [["web", "web~files"]] * 6


def test_parts_are_deleted_in_the_transaction_of_their_flow() -> None:
    store = ScriptedStore()
    tree.init(store)
    apply_flow(Operator(store, *BY), WITH)
    delete_flow(Operator(store, *BY), "web")
    assert flows_written(store) == [["web", "web~files"]] * 2


def test_dead_letter_replay_is_one_flow_with_all_sinks() -> None:
    text = parse_flow(replay_text("web", TREE, "again", "list", [3]))
    assert [leaf.place for leaf in text.leaves] == [
        leaf.place for leaf in parse_written(TREE).leaves
    ]
    assert not parts_of(replay_text("web", TREE, "again", "list", [3]))
