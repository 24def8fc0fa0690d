"""``flow dead``: dead letters in files are counted, shown, listed for a replay, and deleted."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flumeng.config import check_flow
from flumeng.connectors.api.dead_letter_columns import ADDED
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.dead_letters import purging
from flumeng.connectors.dead_letters.directory import DeadLetterDirectory
from flumeng.connectors.dead_letters.finder import DeadLettersFinder
from flumeng.connectors.dead_letters.options import DeadLettersSource
from flumeng.connectors.dead_letters.reader import DeadLettersReader
from flumeng.connectors.dead_letters.selection import Selection
from flumeng.connectors.files import formats
from flumeng.control.commands import derived_flows
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import ConflictError
from flumeng.platform.file_store import LocalFileStore
from tests.testkit.cluster import new_cluster
from tests.testkit.command_line import Shell
from zkschema import paths, records

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
DEAD_LETTERS = pa.schema([*READ_SCHEMA, pa.field("status", pa.int64()), *ADDED])
FORMS = ("parquet", "json")
FILTER, SINK = "filters[0].parse", "sinks[0].elasticsearch"


def letter(seq: int, reason: str = "json: malformed", place: str = FILTER, **more: Any) -> Any:
    return {
        "body": b'{"seq": %d \xff' % seq if seq % 7 == 3 else b'{"seq": "\xc3\xa9%d' % seq,
        "ts": NOON - timedelta(seconds=5),
        "host": "h1",
        "attrs": [("source", "tail"), ("parse_error", reason)],
        "journal": "web.n1.0.00000000",
        "seq": seq,
        "replayed": False,
        "status": None,
        "dead_reason": reason,
        "dead_place": place,
        "dead_revision": 1,
        "dead_time": NOON + timedelta(minutes=seq),
        **more,
    }


class Flow:
    """A flow ``web`` with dead letters below ``root``."""

    def __init__(self, folder: Path, form: str) -> None:
        self.root, self.form = folder / "dead", form
        self.store = new_cluster()
        self.text = f"""
flow: web
sources: [tail: {{paths: [/a]}}]
filters: [parse: {{format: json, schema: "count BIGINT"}}]
sinks: [noop]
dead_letters: {{files: {{path: "{self.root}/dt=%Y-%m-%d", format: {form}}}}}
"""
        apply_flow(Operator(self.store, "ann", "", 0.0), self.text)
        self.shell = Shell(self.store.tree)
        self.location = f"{self.root}/dt=%Y-%m-%d"
        self.bury()

    def bury(
        self, *letters: Any, day: str = "2026-11-22", schema: pa.Schema = DEAD_LETTERS
    ) -> Path:
        """Write one file of dead letters."""
        directory = self.root / f"dt={day}"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"part-{uuid.uuid4().hex}{formats.ending(self.form, 'zstd')}"
        if letters:
            writer = formats.create(pa.OSFile(str(path), "wb"), schema, self.form, "zstd")
            for first in range(0, len(letters), 3):
                writer.write(pa.Table.from_pylist(list(letters[first : first + 3]), schema))
            writer.close()
        return path

    def run(self, *words: str) -> Any:
        return self.shell.run("flow", "dead", words[0], "web", *words[1:])

    def json(self, *words: str) -> Any:
        return self.shell.json("flow", "dead", words[0], "web", *words[1:])

    def left(self) -> list[int]:
        """The numbers of all remaining dead letters."""
        shown = self.run("show", "--json", "--limit", "1000")
        assert shown.exit_code == 0, shown.stderr
        return sorted(json.loads(line)["seq"] for line in shown.stdout.splitlines())

    def source(self, flow: str) -> DeadLettersSource:
        found = self.store.read(paths.revision(flow, "1"))
        assert found is not None
        (source,) = check_flow(found.value.text).sources
        assert isinstance(source.options, DeadLettersSource)
        return source.options

    def events(self, flow: str, pieces: int = 1) -> list[dict[str, Any]]:
        """The events that the replay reads, in ``pieces`` ranges."""
        source = self.source(flow)
        reader = DeadLettersReader.of(source)
        found = []
        for name, rows in source.partitions().items():
            cuts = [rows * piece // pieces for piece in range(pieces + 1)]
            for start, end in itertools.pairwise(cuts):
                for batch in reader.read(Range(name, start, end), ""):
                    assert batch.schema == READ_SCHEMA
                    assert batch.num_rows
                    found += batch.to_pylist()
        return found

    def vanish(self, flow: str) -> None:
        """Remove all traces of the flow."""
        for path in list(self.store.tree.znodes):
            if path.startswith(f"/flows/{flow}"):
                del self.store.tree.znodes[path]

    def finish(self, flow: str) -> None:
        """Mark it as read, as the discovery task does."""
        DeadLettersFinder(self.source(flow)).finished()
        record = self.store.read(paths.flow(flow))
        assert record is not None
        stopped = records.Flow(revision=1, backfill_of="web", state="stopped")
        self.store.write(paths.flow(flow), stopped, record.version)


@pytest.fixture(params=FORMS)
def flow(tmp_path: Path, request: pytest.FixtureRequest) -> Flow:
    return Flow(tmp_path, request.param)


def seqs(events: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(event["seq"] for event in events)


def test_list_counts_letters_by_place_revision_and_common_reason(flow: Flow) -> None:
    flow.bury(*(letter(n) for n in range(5)))
    refused = [f"[1:{n}] failed to parse field [status] in document with id 'web-{n}'"
               for n in range(5, 8)]  # fmt: skip
    flow.bury(*(letter(n, why, SINK, dead_revision=2) for n, why in enumerate(refused, 5)),
              letter(8), day="2026-11-23")  # fmt: skip
    flow.bury(*(letter(n, f"HTTP 422 at {n}", "sinks[1].http") for n in (9, 10)))
    found = flow.json("list")
    assert (found["letters"], found["files"], found["replayed"]) == (11, 3, 0)
    assert found["path"] == f"{flow.root}/dt=%Y-%m-%d"
    assert found["bytes"] == sum(path.stat().st_size for path in flow.root.glob("*/part-*"))
    assert [
        (kind["place"], kind["revision"], kind["reason"], kind["letters"])
        for kind in found["kinds"]
    ] == [
        (FILTER, 1, "json: malformed", 6),
        (SINK, 2, "[...] failed to parse field [status] in document with id '...'", 3),
        ("sinks[1].http", 1, "HTTP 422 at N", 2),
    ]
    assert found["kinds"][0]["first"] == "2026-11-22 12:00:00"
    assert found["kinds"][0]["last"] == "2026-11-22 12:08:00"
    assert found["kinds"][1]["example"] == refused[0]
    shown = flow.run("list").stdout.splitlines()
    assert shown[0].split("\t") == [
        "PLACE", "REVISION", "REASON", "DEAD_LETTERS", "REPLAYED", "FIRST (UTC)", "LAST (UTC)",
    ]  # fmt: skip
    assert shown[-1].startswith("11 dead letters in 3 files of ")


CHOICES = [
    ((), range(9)),
    (("--dead-reason", "malf"), [0, 1, 2, 3, 4, 8]),
    (("--place", SINK), [5, 6, 7]),
    (("--place", "filters"), [0, 1, 2, 3, 4, 8]),
    (("--revision", "2"), [5, 6, 7]),
    (("--since", "2026-11-22T12:04:00Z"), [4, 5, 6, 7, 8]),
    (("--until", "2026-11-22T13:04:00+01:00"), [0, 1, 2, 3]),
    (("--since", "2026-11-22T12:04:00Z", "--revision", "1"), [4, 8]),
    (("--dead-reason", "nothing like it"), []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), CHOICES)
def test_every_command_selects_the_same_letters(
    flow: Flow, words: tuple[str, ...], expected: Sequence[int]
) -> None:
    expected = list(expected)
    flow.bury(*(letter(n) for n in range(5)))
    refused = [letter(n, "no such field", SINK, dead_revision=2) for n in range(5, 8)]
    flow.bury(*refused, letter(8), day="2026-11-23")
    assert flow.json("list", *words)["letters"] == len(expected)
    shown = flow.run("show", *words, "--json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in shown] == expected[::-1], "the newest first"
    done = flow.run("replay", *words)
    assert done.exit_code == (0 if expected else 2), done.stderr
    if expected:
        assert seqs(flow.events("web-replay-1")) == expected
        assert seqs(flow.events("web-replay-1", pieces=4)) == expected, "whatever the ranges"
        assert flow.json("list", *words)["replayed"] == len(expected)
        flow.finish("web-replay-1")
    assert flow.json("purge", *words, "--yes")["letters"] == len(expected)
    assert flow.left() == [n for n in range(9) if n not in expected]


def test_replayed_event_equals_the_dead_one(flow: Flow) -> None:
    flow.bury(letter(3), letter(4))
    assert flow.run("replay").exit_code == 0
    assert flow.events("web-replay-1") == [
        {
            "body": letter(n)["body"],
            "ts": NOON - timedelta(seconds=5),
            "host": "h1",
            "attrs": [("source", "tail")],
            "journal": "web.n1.0.00000000",
            "seq": n,
            "replayed": True,
        }
        for n in (3, 4)
    ]


def test_letter_is_replayed_once_without_the_option_again(flow: Flow) -> None:
    flow.bury(*(letter(n) for n in range(4)))
    assert flow.run("replay", "--until", "2026-11-22T12:02:00Z").exit_code == 0
    rest = flow.run("replay")
    assert "2 dead letters left out, replayed before" in rest.stderr
    assert seqs(flow.events("web-replay-2")) == [2, 3]
    nothing = flow.run("replay")
    assert (nothing.exit_code, "--again replays them again" in nothing.stderr) == (2, True)
    flow.bury(letter(9))
    assert flow.run("replay").exit_code == 0
    assert seqs(flow.events("web-replay-3")) == [9]
    assert flow.run("replay", "--again", "--as", "once-more").exit_code == 0
    assert seqs(flow.events("once-more")) == [0, 1, 2, 3, 9]


def test_replay_list_without_a_flow_takes_nothing(flow: Flow) -> None:
    """As of a command that was killed before the flow was made; a list that was read counts for
    ever."""
    flow.bury(letter(1))
    assert flow.run("replay").exit_code == 0
    flow.vanish("web-replay-1")
    assert flow.json("list")["replayed"] == 0
    assert flow.run("replay", "--as", "second").exit_code == 0
    assert seqs(flow.events("second")) == [1]
    flow.vanish("second")
    assert flow.json("list")["replayed"] == 1
    assert flow.run("replay").exit_code == 2


def test_two_concurrent_replays_do_not_take_the_same_letters(flow: Flow) -> None:
    flow.bury(letter(1))
    stale = derived_flows.dead_letters_of(flow.store, "web")
    assert flow.run("replay").exit_code == 0
    with pytest.raises(ConflictError):
        derived_flows.start_replay(
            Operator(flow.store, "", "", 0.0), stale, "other", "other-1", [1], chosen=""
        )
    with pytest.raises(ConflictError):
        derived_flows.note_purge(Operator(flow.store, "", "", 0.0), stale, "")


def test_replay_is_a_flow_of_its_own_with_the_current_text(flow: Flow) -> None:
    flow.bury(letter(1))
    mended = flow.text.replace("BIGINT", "STRING")
    apply_flow(Operator(flow.store, "ann", "", 0.0), mended)
    done = flow.run("replay", "--reason", "mended")
    assert done.stdout.splitlines()[-1] == "flow web-replay-1 replays 1 dead letter of 1 file"
    record = flow.store.read(paths.flow("web-replay-1"))
    revision = flow.store.read(paths.revision("web-replay-1", "1"))
    assert record is not None
    assert revision is not None
    assert record.value == records.Flow(revision=1, backfill_of="web")
    spec, live = check_flow(revision.value.text), check_flow(mended)
    assert (spec.filters, spec.sinks, spec.dead_letters) == (
        live.filters, live.sinks, live.dead_letters,
    )  # fmt: skip
    assert revision.value.reason == "replay of dead letters of web: mended"
    entries = flow.store.read_many(
        [paths.audit(name) for name in flow.store.children(paths.audits())]
    )
    assert [one.value.command for one in entries if one and one.value.reason == "mended"] == [
        "flow dead replay web as web-replay-1: 1 dead letter"
    ]
    refused = flow.shell.run("flow", "dead", "list", "web-replay-1")
    assert (refused.exit_code, "name that flow" in refused.stderr) == (2, True)


def test_warning_when_other_sinks_have_the_events_already(flow: Flow) -> None:
    flow.bury(letter(1), letter(2, place=SINK))
    assert "other sinks" not in flow.run("replay", "--dry-run").stderr
    several = flow.text.replace("sinks: [noop]", "sinks: [noop, console]")
    apply_flow(Operator(flow.store, "ann", "", 0.0), several)
    assert "1 dead letter of sinks: other sinks" in flow.run("replay", "--dry-run").stderr
    assert "other sinks" not in flow.run("replay", "--dry-run", "--place", FILTER).stderr


def test_a_dry_run_changes_nothing(flow: Flow) -> None:
    flow.bury(letter(1))
    before, there = flow.store.dump(), sorted(flow.root.rglob("*"))
    assert "would replay 1 dead letter of 1 file" in flow.run("replay", "--dry-run").stdout
    assert "would be deleted" in flow.run("purge", "--dry-run").stdout
    assert (flow.store.dump(), sorted(flow.root.rglob("*"))) == (before, there)


def test_letters_without_a_body_are_left_out_of_a_replay(flow: Flow) -> None:
    schema = pa.schema([field for field in DEAD_LETTERS if field.name != "body"])
    bodiless = [{k: v for k, v in letter(n).items() if k != "body"} for n in (1, 2)]
    flow.bury(*bodiless, schema=schema)
    refused = flow.run("replay")
    assert (refused.exit_code, "has a body to replay" in refused.stderr) == (2, True)
    flow.bury(letter(3))
    done = flow.run("replay")
    assert "2 dead letters left out, without the column body" in done.stderr
    assert seqs(flow.events("web-replay-1")) == [3]


def test_letter_without_a_body_does_not_keep_the_others_of_its_file_from_a_replay(
    flow: Flow,
) -> None:
    flow.bury({**letter(1), "body": None}, letter(2), letter(3))
    done = flow.run("replay")
    assert "left out" not in done.stderr
    assert seqs(flow.events("web-replay-1")) == [2, 3]


def test_letter_without_an_identity_gets_one_of_the_replay(flow: Flow) -> None:
    schema = pa.schema([DEAD_LETTERS.field("body"), *ADDED])
    flow.bury(*({name: letter(n)[name] for name in schema.names} for n in (1, 2)), schema=schema)
    assert flow.run("replay").exit_code == 0
    events = flow.events("web-replay-1", pieces=2)
    (name,) = flow.source("web-replay-1").partitions()
    assert [(event["journal"], event["seq"]) for event in events] == [(name, 0), (name, 1)]
    assert [(event["host"], event["attrs"]) for event in events] == [("", [])] * 2
    assert events[0]["ts"] == NOON + timedelta(minutes=1), "when it died"


def test_damaged_file_is_named_and_the_others_are_read(flow: Flow) -> None:
    flow.bury(*(letter(n) for n in range(3)))
    torn = flow.bury(*(letter(n) for n in range(3, 9)))
    torn.write_bytes(torn.read_bytes()[:-40])
    flow.bury(letter(9))
    empty = flow.bury(letter(10))
    empty.write_bytes(b"")
    for words in (("list",), ("show",), ("purge", "--dry-run"), ("replay",)):
        done = flow.run(*words)
        assert done.exit_code == 0, done.stderr
        assert str(torn) in done.stderr, words
    assert flow.json("list")["letters"] == 4
    assert set(flow.json("list")["damaged"]) >= {str(torn)}
    assert seqs(flow.events("web-replay-1")) == [0, 1, 2, 9]


def damage_bodies(path: Path) -> None:
    """Damage the bodies of a Parquet file whose other columns can still be read."""
    content = bytearray(path.read_bytes())
    metadata = pq.ParquetFile(path).metadata
    for group in range(metadata.num_row_groups):
        body = metadata.row_group(group).column(0)
        assert body.path_in_schema == "body"
        start = body.dictionary_page_offset or body.data_page_offset
        content[start : start + body.total_compressed_size] = b"x" * body.total_compressed_size
    path.write_bytes(content)


def test_damage_that_shows_only_in_whole_letters_stops_no_other_file(tmp_path: Path) -> None:
    flow = Flow(tmp_path, "parquet")
    flow.bury(letter(1), letter(2, place=SINK))
    torn = flow.bury(letter(3), letter(4, place=SINK))
    flow.bury(letter(5), letter(6, place=SINK))
    damage_bodies(torn)
    shown = flow.run("show", "--json")
    assert shown.exit_code == 0
    assert [json.loads(line)["seq"] for line in shown.stdout.splitlines()] == [6, 5, 2, 1]
    purged = flow.run("purge", "--place", SINK, "--yes")
    assert purged.exit_code == 0
    for done in (shown, purged):
        assert done.stderr.count(str(torn)) == 1
    assert flow.left() == [1, 5]
    assert torn.exists()


def test_file_with_other_rows_than_dead_letters_is_left_out(flow: Flow) -> None:
    flow.bury(letter(1))
    others = pa.schema([pa.field("amount", pa.int64()), pa.field("user", pa.string())])
    foreign = flow.bury({"amount": 1, "user": "ann"}, schema=others)
    newer = pa.schema([*DEAD_LETTERS, pa.field("dead_owner", pa.list_(pa.string()))])
    flow.bury(letter(2, dead_owner=["ann"]), schema=newer)
    for words in (("list",), ("show",), ("purge", "--dry-run"), ("replay",)):
        done = flow.run(*words)
        assert done.exit_code == 0, done.stderr
        assert done.stderr.count(f"{foreign}: the rows of the file are not dead letters") == 1, (
            words
        )
    assert flow.json("list")["letters"] == 2
    assert flow.left() == [1, 2]
    assert seqs(flow.events("web-replay-1")) == [1, 2]


@pytest.mark.long
def test_letters_of_many_files_are_summed_by_place_and_reason(flow: Flow) -> None:
    for number in range(30):
        reason = f"json: malformed at {number}"
        flow.bury(*(letter(n, reason, (FILTER, SINK)[n % 2]) for n in range(number, number + 101)))
    flow.bury(*(letter(n, "other", SINK) for n in range(2_500)))
    kinds = flow.json("list")["kinds"]
    assert {(kind["place"], kind["reason"]): kind["letters"] for kind in kinds} == {
        (FILTER, "json: malformed at N"): 1515,
        (SINK, "json: malformed at N"): 1515,
        (SINK, "other"): 2500,
    }


def test_file_damaged_after_the_listing_stops_its_part_of_the_replay(flow: Flow) -> None:
    first, second = flow.bury(letter(1), letter(2)), flow.bury(*map(letter, range(3, 9)))
    assert flow.run("replay").exit_code == 0
    last = max(first, second, key=lambda path: path.name)
    listed = len(last.read_bytes())
    last.write_bytes(b"x" * listed)
    with pytest.raises(UnreadableError) as raised:
        flow.events("web-replay-1")
    assert str(last) in raised.value.why


def test_purge_waits_for_replays_and_knows_the_delivered_letters(flow: Flow) -> None:
    flow.bury(*(letter(n) for n in range(4)))
    size = flow.bury(*(letter(n) for n in range(4, 6))).stat().st_size
    assert flow.run("replay", "--since", "2026-11-22T12:03:00Z").exit_code == 0
    waits = flow.run("purge", "--yes")
    assert waits.exit_code == 3
    assert "1 replay of flow web is not finished (web-replay-1): a running one" in waits.stderr
    flow.finish("web-replay-1")
    assert flow.json("purge", "--replayed", "--yes") == {
        "flow": "web", "letters": 3, "files": 1, "rewritten": 1,
        "bytes": size, "damaged": {},
    }  # fmt: skip
    assert flow.left() == [0, 1, 2]
    assert flow.json("list")["replayed"] == 0
    assert flow.json("purge", "--replayed", "--yes")["letters"] == 0
    flow.bury(letter(7))
    assert flow.run("replay").exit_code == 0, "the rest of a file that was rewritten"
    assert seqs(flow.events("web-replay-2")) == [0, 1, 2, 7]


def test_finished_replay_stays_finished_when_all_its_letters_are_purged(flow: Flow) -> None:
    flow.bury(letter(1))
    assert flow.run("replay").exit_code == 0
    flow.finish("web-replay-1")
    assert flow.json("purge", "--yes")["letters"] == 1
    flow.bury(letter(2))
    assert flow.json("purge", "--yes")["letters"] == 1
    flow.vanish("web-replay-1")
    flow.bury(letter(3))
    assert flow.json("purge", "--yes")["letters"] == 1
    assert not list((flow.root / "_replays").glob("*/*"))


def test_partly_purged_file_is_not_read_by_its_old_rows(flow: Flow) -> None:
    flow.bury(*(letter(n) for n in range(6)))
    assert flow.run("replay").exit_code == 0
    directory = DeadLetterDirectory(flow.location)
    some = purging.Purge(Selection(until=round((NOON + timedelta(minutes=2)).timestamp() * 1e6)))
    purging.delete(directory, purging.count(directory, directory.files(), some), some)
    with pytest.raises(UnreadableError, match="were purged after the file"):
        flow.events("web-replay-1")


def test_purge_asks_first(flow: Flow) -> None:
    flow.bury(letter(1))
    assert flow.run("purge").exit_code == 1
    assert flow.left() == [1]


@pytest.mark.parametrize(
    ("sink", "complaint"),
    [
        ("elasticsearch: {hosts: ['http://h:9200'], index: a}", "go to elasticsearch: read them"),
        ("files: {path: /d, format: csv}", "are csv files"),
        ("files: {path: /d, columns: flat}", "are flat files"),
        ("", "has no dead letters: give it"),
    ],
)
def test_letters_in_another_kind_of_sink_are_refused_with_advice(
    flow: Flow, sink: str, complaint: str
) -> None:
    text = flow.text[: flow.text.index("dead_letters")] + (
        f"dead_letters: {{{sink}}}\n" if sink else ""
    )
    apply_flow(Operator(flow.store, "ann", "", 0.0), text)
    for command in ("list", "show", "replay", "purge"):
        done = flow.run(command)
        assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr


def test_invalid_arguments_are_wrong_input(flow: Flow) -> None:
    flow.bury(letter(1))
    assert "a time with its zone" in flow.run("list", "--since", "monday").stderr
    assert flow.run("replay", "--as", "web").exit_code == 3
    assert flow.run("replay", "--as", "Web").exit_code == 2
    apply_flow(Operator(flow.store, "", "", 0), flow.text.replace("flow: web", "flow: other"))
    assert "flow other has its dead letters in" in flow.run("replay").stderr
    assert flow.run("purge", "--yes").exit_code == 2
    assert flow.left() == [1]


def test_foreign_files_are_not_counted_as_letters(flow: Flow) -> None:
    path = flow.bury(letter(1))
    for other in (
        flow.root / "_flumeng" / "0.1.x" / path.name,
        flow.root / "dt=yesterday" / path.name,
        path.with_name("_SUCCESS"),
        path.with_name(f"copy-{path.name}"),
        flow.root / path.name,
    ):
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(path.read_bytes())
    assert flow.json("list")["files"] == 1


def test_directory_of_another_host_is_reported(flow: Flow) -> None:
    text = flow.text.replace(str(flow.root), "/nowhere/dead")
    apply_flow(Operator(flow.store, "", "", 0), text)
    done = flow.run("list")
    assert (done.exit_code, "is not on this host" in done.stderr) == (2, True)


class KilledError(Exception):
    pass


class MortalStore(LocalFileStore):
    """A store that is killed before the step of that number."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.left = last

    def step(self) -> None:
        if self.left == 0:
            raise KilledError
        self.left -= 1

    def exists(self, path: str) -> bool:
        self.step()
        return super().exists(path)

    def open_output(self, path: str) -> pa.NativeFile:
        self.step()
        return super().open_output(path)

    def sync(self, path: str) -> None:
        self.step()
        super().sync(path)

    def rename(self, moves: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        self.step()
        return super().rename(moves)


@pytest.mark.slow
def test_killed_purge_loses_no_letter_that_was_to_stay(tmp_path: Path) -> None:
    """At each of its steps; and the next purge ends it."""
    odd = purging.Purge(Selection(place=SINK))
    last = 0
    while True:
        flow = Flow(tmp_path / str(last), FORMS[last % 2])
        for first in (0, 4, 8):
            places = [SINK if n % 2 else FILTER for n in range(first, first + 4)]
            flow.bury(*(letter(n, place=place) for n, place in enumerate(places, first)))
        flow.bury(letter(13, place=SINK), letter(15, place=SINK))
        kept, meant = list(range(0, 12, 2)), [1, 3, 5, 7, 9, 11, 13, 15]
        directory = DeadLetterDirectory(flow.location)
        counted = purging.count(directory, directory.files(), odd)
        directory.store = MortalStore(last)
        try:
            purging.delete(directory, counted, odd)
        except KilledError:
            left = flow.left()
            assert set(kept) <= set(left) <= {*kept, *meant}
            assert len(left) == len(set(left)), "none is there twice"
            assert flow.json("purge", "--place", SINK, "--yes")["damaged"] == {}
        else:
            break
        assert flow.left() == kept
        last += 1
    assert flow.left() == kept
    assert last > 8


def test_damaged_replay_list_stops_commands_that_would_take_letters_twice(flow: Flow) -> None:
    """It is then unknown which letters were replayed."""
    flow.bury(letter(1))
    assert flow.run("replay").exit_code == 0
    (listed,) = (flow.root / "_replays" / "web").glob("*.parquet")
    content = listed.read_bytes()
    listed.write_bytes(b"x" * 9)
    for command in ("list", "replay", "purge"):
        done = flow.run(command)
        assert (done.exit_code, str(listed) in done.stderr) == (1, True), command
    with pytest.raises(UnreadableError, match=r"partition letters\.0"):
        flow.events("web-replay-1")
    listed.write_bytes(content)
    assert seqs(flow.events("web-replay-1")) == [1]
