"""A real PostgreSQL: the rows of a split of a batch, with failures at each step."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flumeng.connectors.api.dead_letters import DeadLetters, RefusedError
from flumeng.connectors.api.sink import BatchId
from flumeng.connectors.postgres import write_split
from flumeng.connectors.postgres.connection import Connection
from flumeng.connectors.postgres.options import Sql
from flumeng.connectors.postgres.target import Server, Target
from flumeng.connectors.postgres.write_split import CHUNK_BYTES, Claim, Transaction, WriteSplit
from flumeng.events.identity import with_identity
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.scrubbing import Secret
from tests.live.own_server import need_own
from tests.testkit.servers.postgres import RealPostgres

SCHEMA = with_identity(READ_SCHEMA)
FIRST, SECOND = BatchId("series", 1), BatchId("series", 2)


@pytest.fixture(scope="module")
def running() -> Iterator[RealPostgres]:
    try:
        postgres = RealPostgres()
    except UserError as error:
        pytest.skip(str(error))
    postgres.start()
    yield postgres
    postgres.close()


@pytest.fixture
def postgres(running: RealPostgres) -> Iterator[RealPostgres]:
    yield running
    running.run(
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type = 'client backend' AND datname = current_database()",
    )


def events(first: int, count: int, columns: dict[str, pa.Array] | None = None) -> pa.RecordBatch:
    numbers = range(first, first + count)
    found = {
        "body": pa.array([b"line %d" % n for n in numbers], pa.binary()),
        "ts": pa.array([1_795_000_000_000_000 + n for n in numbers], pa.timestamp("us", "UTC")),
        "host": pa.array(["192.0.2.1"] * count),
        "attrs": pa.array([[("k", "v")]] * count, pa.map_(pa.string(), pa.string())),
        "journal": pa.array(["web.n1.0.00000000"] * count),
        "seq": pa.array(numbers, pa.int64()),
        "replayed": pa.array([False] * count),
        "__journal": pa.array(["web.n1.0.00000000"] * count),
        "__seq": pa.array(numbers, pa.int64()),
        "__split": pa.array([0] * count, pa.int32()),
    } | (columns or {})
    return pa.RecordBatch.from_pydict(found)


def target(postgres: RealPostgres, taken: pa.Schema = SCHEMA, /, **options: Any) -> Target:
    given = {"url": postgres.url, "table": "events", "username": postgres.username}
    sql = Sql(**(given | {"create": True} | options))
    password = Secret(postgres.password)
    server = Server(*sql.address, sql.username, password, "disable", "", sql.timeout_seconds)
    return Target.of(server, sql, taken)


@dataclass
class Letters:
    found: dict[int, str] = field(default_factory=dict)

    def __call__(self, refused: pa.RecordBatch, reasons: Sequence[str]) -> None:
        for seq, reason in zip(refused["__seq"].to_pylist(), reasons, strict=True):
            assert seq not in self.found
            self.found[seq] = reason


def refuse_nothing(refused: pa.RecordBatch, reasons: Sequence[str]) -> None:
    raise AssertionError(f"{refused['__seq']} {reasons}")


def write(
    to: Target,
    batch: BatchId | None,
    *parts: pa.RecordBatch,
    refuse: Callable[[pa.RecordBatch, Sequence[str]], None] = refuse_nothing,
    patience_seconds: float | None = None,
) -> int:
    (row,) = WriteSplit(to, batch, "sinks[0].sql", patience_seconds)(iter(parts), refuse)
    return int(row.column("events")[0].as_py())


def seqs(postgres: RealPostgres, table: str = "events") -> list[int]:
    return [seq for (seq,) in postgres.run(f"SELECT seq FROM {table} ORDER BY seq")]


def test_repeated_batch_adds_nothing_and_the_next_one_does(postgres: RealPostgres) -> None:
    to = target(postgres)
    for _ in range(3):
        assert write(to, FIRST, events(0, 10), events(10, 5)) == 15
    assert write(to, SECOND, events(15, 5)) == 5
    assert write(to, FIRST, events(0, 10), events(10, 5)) == 15  # a zombie, long after
    assert seqs(postgres) == list(range(20))
    rows = postgres.run("SELECT series, split, number, refused FROM flumeng_batches")
    assert rows == [("series sinks[0].sql", 0, 2, None)]


def test_rows_beyond_limits_and_rows_that_a_trigger_refuses_are_dead_letters(
    postgres: RealPostgres,
) -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    postgres.run("CREATE TABLE ev (seq bigint, body jsonb)")
    postgres.run(
        "CREATE FUNCTION no_two() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.seq = 2 THEN RAISE EXCEPTION 'no two here'; END IF; RETURN NEW; END $$"
    )
    postgres.run("CREATE TRIGGER no_two BEFORE INSERT ON ev FOR EACH ROW EXECUTE FUNCTION no_two()")
    bodies = pa.array([b"1", deep, b"2", b"3"], pa.binary())
    batch = events(0, 4, {"body": bodies}).select(["body", "seq", "__journal", "__seq", "__split"])
    letters = Letters()
    to = target(postgres, batch.schema, table="ev", create=False)
    write(to, FIRST, batch, refuse=letters)
    assert letters.found == {1: "stack depth limit exceeded", 2: "no two here"}
    assert seqs(postgres, "ev") == [0, 3]


def test_sinks_and_splits_of_a_batch_have_distinct_numbers(postgres: RealPostgres) -> None:
    to = target(postgres)
    write(to, FIRST, events(0, 5))
    write(to, FIRST, events(5, 5, {"__split": pa.array([1] * 5, pa.int32())}))
    list(WriteSplit(to, FIRST, "sinks[1].sql")(iter([events(10, 5)]), refuse_nothing))
    assert seqs(postgres) == list(range(15))


def test_created_table_has_the_documented_types(postgres: RealPostgres) -> None:
    write(target(postgres), FIRST, events(0, 1))
    types = postgres.run(
        "SELECT column_name::text, data_type::text FROM information_schema.columns "
        "WHERE table_name = 'events' ORDER BY ordinal_position"
    )
    assert dict(types) == {
        "body": "text",
        "ts": "timestamp with time zone",
        "host": "text",
        "attrs": "jsonb",
        "journal": "text",
        "seq": "bigint",
        "replayed": "boolean",
    }
    (row,) = postgres.run("SELECT body, ts::text, host, attrs->>'k', replayed FROM events")
    assert row == ("line 0", "2026-11-18 11:06:40+00", "192.0.2.1", "v", False)


def test_two_concurrent_writers_write_a_batch_once(postgres: RealPostgres) -> None:
    """The second waits for the first's lock, and then finds the number."""
    to = target(postgres)
    write(to, FIRST, events(0, 1))
    claim = Claim(SECOND, "sinks[0].sql", 0)
    connection = Connection(to.server)
    zombie = Transaction(connection, to, claim)
    zombie.write(events(1, 4), refuse_nothing)
    second = threading.Thread(target=write, args=(to, SECOND, events(1, 4)))
    second.start()
    time.sleep(0.5)
    assert second.is_alive()
    zombie.commit()
    second.join(10)
    connection.close()
    assert seqs(postgres) == list(range(5))


def test_writer_that_hangs_with_its_lock_is_ended_by_the_next(postgres: RealPostgres) -> None:
    """A process that was stopped in the middle does not hold up its split for ever, and its later
    writes have no effect."""
    to = target(postgres, timeout_seconds=1.0)
    write(to, FIRST, events(0, 1))
    connection = Connection(to.server)
    zombie = Transaction(connection, to, Claim(SECOND, "sinks[0].sql", 0))
    zombie.write(events(1, 4), refuse_nothing)
    write(to, SECOND, events(1, 4), patience_seconds=30.0)
    with pytest.raises(UnavailableError):
        zombie.commit()
    connection.close()
    assert seqs(postgres) == list(range(5))


def test_upsert_leaves_one_row_of_an_event_and_replaces_it(postgres: RealPostgres) -> None:
    to = target(postgres, mode="upsert")
    write(to, None, events(0, 10))
    write(to, None, events(5, 10, {"host": pa.array(["later"] * 10)}), events(15, 5))
    assert seqs(postgres) == list(range(20))
    assert postgres.run("SELECT count(*) FROM events WHERE host = 'later'") == [(10,)]


def test_upsert_uses_the_identity_also_without_its_columns(postgres: RealPostgres) -> None:
    part = events(0, 3).select(["host", "__journal", "__seq", "__split"])
    to = target(postgres, part.schema, mode="upsert")
    write(to, None, part)
    write(to, None, part)
    assert seqs(postgres) == [0, 1, 2]


def test_refused_rows_are_isolated_and_the_rest_is_written(postgres: RealPostgres) -> None:
    postgres.run(
        "CREATE TABLE events (host text CHECK (host <> 'bad'), n smallint, seq bigint UNIQUE, "
        "body varchar(8))"
    )
    hosts = pa.array(["bad" if n in (3, 77) else "good" for n in range(100)])
    numbers = pa.array([2**20 if n == 50 else n for n in range(100)], pa.int64())
    bodies = pa.array([b"far too long" if n == 99 else b"short" for n in range(100)])
    part = events(0, 100, {"host": hosts, "n": numbers, "body": bodies}).select(
        ["host", "n", "seq", "body", "__journal", "__seq", "__split"]
    )
    to, letters = target(postgres, part.schema), Letters()
    assert write(to, FIRST, part, refuse=letters) == 100
    assert set(letters.found) == {3, 50, 77, 99}
    assert seqs(postgres) == [n for n in range(100) if n not in (3, 50, 77, 99)]
    assert "check constraint" in letters.found[3]
    assert "column n" in letters.found[50]
    assert "too long" in letters.found[99]
    again = Letters()
    assert write(to, FIRST, part, refuse=again) == 100
    assert again.found == letters.found
    late = Letters()
    assert write(to, SECOND, part.slice(0, 5), refuse=late) == 5
    assert set(late.found) == {0, 1, 2, 3, 4}  # unique
    write(to, FIRST, part, refuse=refuse_nothing)


def test_refused_event_and_reason_are_reported_without_dead_letters(postgres: RealPostgres) -> None:
    postgres.run("CREATE TABLE events (host text CHECK (host <> 'bad'))")
    part = events(0, 9, {"host": pa.array(["good"] * 7 + ["bad"] * 2)})
    part = part.select(["host", "__journal", "__seq", "__split"])
    stage = DeadLetters("sinks[0].sql").around(
        WriteSplit(target(postgres, part.schema), FIRST, "sinks[0].sql"),
        pa.schema([pa.field("events", pa.int64())]),
    )
    with pytest.raises(RefusedError, match=r"event web\.n1\.0\.00000000-7: .*check constraint"):
        list(stage(iter([part])))
    assert postgres.run("SELECT count(*) FROM events") == [(0,)]


def test_server_killed_between_and_during_batches_loses_nothing(postgres: RealPostgres) -> None:
    need_own(postgres)
    to = target(postgres)
    write(to, FIRST, events(0, 5))
    postgres.kill()
    postgres.start()
    write(to, SECOND, events(5, 5))  # over a kept connection that is broken by now

    long = {"body": pa.array([b"x" * (CHUNK_BYTES // 1000)] * 1000, pa.binary())}

    def parts() -> Iterator[pa.RecordBatch]:
        yield events(10, 1000, long)  # one COPY
        postgres.kill()
        postgres.start()
        yield events(1010, 1000)

    third = BatchId("series", 3)
    with pytest.raises(UnavailableError):
        list(WriteSplit(to, third, "sinks[0].sql")(parts(), refuse_nothing))
    assert seqs(postgres) == list(range(10))
    write(to, third, events(10, 1000), events(1010, 1000))
    assert seqs(postgres) == list(range(2010))


def test_frozen_server_is_given_up_in_time(postgres: RealPostgres) -> None:
    need_own(postgres)
    to = target(postgres, timeout_seconds=1.0)
    write(to, FIRST, events(0, 5))
    postgres.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(UnavailableError, match="has not responded"):
            write(to, SECOND, events(5, 5), patience_seconds=0.0)
    finally:
        postgres.thaw()
    assert time.monotonic() - began < 25
    write(to, SECOND, events(5, 5), patience_seconds=20.0)
    assert seqs(postgres) == list(range(10))


def test_foreign_table_lock_costs_time_and_no_event(postgres: RealPostgres) -> None:
    to = target(postgres, timeout_seconds=1.0)
    write(to, FIRST, events(0, 5))
    with postgres.connect() as stranger, stranger.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(UnavailableError, match="statement timeout"):
            write(to, SECOND, events(5, 5))
        cursor.execute("ROLLBACK")
    write(to, SECOND, events(5, 5))
    assert seqs(postgres) == list(range(10))


def test_missing_columns_are_added_with_schema_add_and_else_refused(postgres: RealPostgres) -> None:
    postgres.run("CREATE TABLE events (seq bigint, host text, extra int)")
    part = events(0, 1).select(["seq", "host", "body", "__journal", "__seq", "__split"])
    with pytest.raises(UserError, match="no column body: add it"):
        write(target(postgres, part.schema), FIRST, part)
    write(target(postgres, part.schema, schema="add"), FIRST, part)
    assert postgres.run("SELECT seq, host, body, extra FROM events") == [
        (0, "192.0.2.1", "line 0", None)
    ]


def test_column_whose_type_was_changed_is_converted(postgres: RealPostgres) -> None:
    """Its binary form has as many bytes: nothing else would show the change."""
    part = events(7, 1).select(["seq", "__journal", "__seq", "__split"])
    to = target(postgres, part.schema)
    write(to, FIRST, part)
    postgres.run("ALTER TABLE events ALTER seq TYPE double precision")
    write(to, SECOND, part)
    assert postgres.run("SELECT seq FROM events") == [(7.0,), (7.0,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"create": False}, r"table \"public\".\"events\" does not exist"),
        ({"url": "postgresql://127.0.0.1:{port}/nowhere"}, '"nowhere" does not exist'),
        ({"username": "nobody"}, "password authentication failed"),
    ],
)
def test_options_that_a_person_must_correct_are_reported_at_once(
    postgres: RealPostgres, options: dict[str, Any], message: str
) -> None:
    given = {k: v.format(port=postgres.port) if k == "url" else v for k, v in options.items()}
    with pytest.raises(UserError, match=message) as caught:
        write(target(postgres, **given), FIRST, events(0, 1))
    assert postgres.password not in str(caught.value)


def test_small_batches_share_a_connection(postgres: RealPostgres) -> None:
    to = target(postgres)
    for number in range(20):
        write(to, BatchId("series", number), events(number, 1))
    name = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'flumeng%'"
    assert postgres.run(name) == [(1,)]


class LosesAnswers:
    """A proxy in front of the server: a COMMIT reaches it, and its answer is lost."""

    def __init__(self, postgres: RealPostgres) -> None:
        self._server = (postgres.host, postgres.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.answers = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                if b"C\0\0\0\x0bCOMMIT\0" in content:  # as the server says that it is done
                    self.answers += 1
                    break
                sink.sendall(content)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_lost_answer_to_commit_writes_each_event_once(postgres: RealPostgres, mode: str) -> None:
    to = target(postgres, mode=mode)
    batch = FIRST if mode == "append" else None
    proxy = LosesAnswers(postgres)
    url = f"postgresql://127.0.0.1:{proxy.port}/{postgres.database}"
    with pytest.raises(UnavailableError):
        write(target(postgres, mode=mode, url=url), batch, events(0, 10))
    assert proxy.answers == 1
    assert seqs(postgres) == list(range(10))  # it has taken effect
    write(to, batch, events(0, 10))
    assert seqs(postgres) == list(range(10))
    proxy.close()


def test_writers_that_deadlock_lose_nothing(postgres: RealPostgres) -> None:
    """Two upsert the same events in opposite order: the server aborts one of them, which tries
    again."""
    to = target(postgres, mode="upsert")
    write(to, None, events(0, 2))
    lost: list[UnavailableError] = []
    meet = threading.Barrier(2, timeout=10)

    def run(order: list[int]) -> None:
        connection = Connection(to.server)
        opened = Transaction(connection, to, None)
        try:
            opened.write(events(order[0], 1), refuse_nothing)
            meet.wait()
            opened.write(events(order[1], 1), refuse_nothing)
            opened.commit()
        except UnavailableError as error:
            lost.append(error)
        connection.close()

    threads = [threading.Thread(target=run, args=(order,)) for order in ([0, 1], [1, 0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert ["deadlock detected" in str(error) for error in lost] == [True]
    assert seqs(postgres) == [0, 1]


def test_user_without_create_rights_uses_existing_tables(postgres: RealPostgres) -> None:
    to, writer = target(postgres), f"{postgres.database}_writer"
    write(to, FIRST, events(0, 1))
    postgres.run(
        f"CREATE ROLE {writer} LOGIN PASSWORD '{postgres.password}'",
        f"GRANT USAGE ON SCHEMA public TO {writer}",
        f"GRANT INSERT ON events TO {writer}",
        f"GRANT SELECT, INSERT, UPDATE ON flumeng_batches TO {writer}",
    )
    try:
        write(target(postgres, username=writer, create=False), SECOND, events(1, 1))
        assert seqs(postgres) == [0, 1]
    finally:
        postgres.run(f"DROP OWNED BY {writer}", f"DROP ROLE {writer}")


def test_all_types_of_values_are_written(postgres: RealPostgres) -> None:
    """Nulls, NaN, infinity, years 1 and 9999, control characters, bodies that are no text."""
    columns = {
        'Quoted "name"': pa.array(["x", None, "\0\t\n\\"]),
        "body": pa.array([b"\xff\0", None, b'{"a": "\\u0000"}']),
        "flag": pa.array([True, None, False]),
        "small": pa.array([1, None, -1], pa.int8()),
        "real": pa.array([float("nan"), None, float("-inf")], pa.float32()),
        "double": pa.array([float("nan"), None, 1e308]),
        "dec": pa.array([Decimal("1.5"), None, Decimal("-0.01")], pa.decimal128(38, 18)),
        "day": pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
        "ts": pa.array(
            [-62_135_596_800_000_000, None, 253_402_300_799_999_999], pa.timestamp("us", "UTC")
        ),
        "plain": pa.array([0, None, 1], pa.timestamp("us")),
        "gap": pa.array([1, None, -1], pa.duration("us")),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "struct": pa.array([{"a": "\0", "b": None}, None, {"a": "", "b": 1.5}]),
        "attrs": pa.array([[("k\0", "\x7f\0")], None, []], pa.map_(pa.string(), pa.string())),
        "nothing": pa.nulls(3),
        "identity": events(0, 3)["__seq"],
    }
    part = pa.RecordBatch.from_pydict(
        columns | {name: events(0, 3)[name] for name in ("__journal", "__seq", "__split")}
    )
    write(target(postgres, part.schema), FIRST, part)
    rows = postgres.run(
        'SELECT "Quoted ""name""", body, "real"::text, "double"::text, dec::text, day::text, '
        "ts::text, list::text, struct::text, attrs::text FROM events ORDER BY identity"
    )
    assert rows == [
        ("x", "\ufffd\ufffd", "NaN", "NaN", "1.500000000000000000", "0001-01-01",
            "0001-01-01 00:00:00+00", "[1, null]", '{"a": "\ufffd"}', '{"k\ufffd": "\x7f\ufffd"}'),
        (None,) * 10,
        ("\ufffd\t\n\\", '{"a": "\\u0000"}', "-Infinity", "1e+308", "-0.010000000000000000",
            "9999-12-31", "9999-12-31 23:59:59.999999+00", "[]", '{"a": "", "b": 1.5}', "{}"),
    ]  # fmt: skip


def test_missing_table_is_reported_before_the_first_batch(postgres: RealPostgres) -> None:
    to = target(postgres)
    options = Sql(url=postgres.url, table="events", username=postgres.username)
    with pytest.raises(UserError, match='table "public"'):
        write_split.probe(to.server, options)
    write_split.probe(to.server, replace(options, create=True))
    with pytest.raises(UserError, match="does not exist, or the user may not see it"):
        write_split.probe(to.server, options)
    postgres.run("CREATE TABLE events (body bytea)")
    write_split.probe(to.server, options)
    with pytest.raises(UserError, match="does not exist"):
        write_split.probe(replace(to.server, database="absent"), options)
