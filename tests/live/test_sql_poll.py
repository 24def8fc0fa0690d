"""Polls of a real PostgreSQL: each row once, while it is written by many."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.connectors.polls.poll import MOST_STATE_BYTES
from flumeng.connectors.polls.sql_options import SqlPollSource, TrackColumn
from flumeng.platform.errors import UnavailableError, UserError
from tests.live.own_server import need_own
from tests.live.sql_polling import Polling
from tests.testkit.files import contents_below
from tests.testkit.servers.postgres import RealPostgres
from tests.testkit.waiting import wait_for

pytestmark = pytest.mark.long

WRITERS = 6
WRITING_SECONDS = 6.0
LONGEST_SECONDS = 1.5
"""Maximum duration of a writer's transaction; on a busy host it is rolled back instead."""
SETTLE_SECONDS = 4.0


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
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND backend_type = 'client backend' AND datname = current_database()",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
    )


@pytest.fixture(scope="module")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def polling(
    running: RealPostgres, event_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Polling]:
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(event_log),
        "spark.eventLog.compress": "false",
    }
    environment = {
        "FLUMENG_SECRET_SHOP_DB": running.password,
        "FLUMENG_SECRET_WRONG": "not-the-password",
        "TZ": "Europe/Berlin",
    }
    polling = Polling(tmp_path_factory.mktemp("spark") / "collector", environment, conf)
    yield polling
    polling.stop()


def source(postgres: RealPostgres, **options: Any) -> SqlPollSource:
    given: dict[str, Any] = {
        "url": f"jdbc:{postgres.url}",
        "username": postgres.username,
        "password": "${secret:shop-db}",
        "schedule": Schedule(every_seconds=1),
        "answers": Answers(path="/nowhere"),
        **({} if "query" in options else {"table": "rows"}),
    }
    return SqlPollSource(**(given | options))


class Taken:
    """All answers of a poll so far, and its state."""

    def __init__(self, polling: Polling, options: SqlPollSource, page_rows: int = 20_000) -> None:
        self._polling = polling
        self.options = options
        self._page_rows = page_rows
        self.state = ""
        self.rows: list[dict[str, Any]] = []
        self.pages: list[int] = []

    def poll(self) -> list[dict[str, Any]]:
        """The rows of one due time."""
        found: list[dict[str, Any]] = []
        more = True
        while more:
            answer = self._polling.ask(self.options, self.state, page_rows=self._page_rows)
            assert len(answer.state.encode()) < MOST_STATE_BYTES / 8
            rows = [json.loads(body) for body in answer.bodies.to_pylist()]
            self.pages.append(len(rows))
            found += rows
            self.state, more = answer.state, answer.more
        self.rows += found
        return found


def test_polled_values_equal_those_of_the_database(
    polling: Polling, postgres: RealPostgres
) -> None:
    """Spark by itself rounds numbers without a precision, and times of day, and shifts times
    without a zone, some of which do not exist in the host's own zone; NaN is no JSON."""
    postgres.run(
        "CREATE TABLE rows (id int, long numeric, huge numeric(60,0), money numeric(10,2), "
        "wall timestamp, moment timestamptz, bytes bytea, name uuid, doc jsonb, words text[], "
        "clock time, day date, ratio double precision, yes boolean, text text)",
        "INSERT INTO rows VALUES (1, 1.12345678901234567890123450, 1e50, 3.10, "
        "'2026-03-29 02:30:00.123456', '2026-11-26 12:00:00.000001+01', '\\x00ff', "
        "'c4cfd37f-f418-4248-8bec-2eb6a54843e9', '{\"x\": 1}', '{a,NULL}', '12:34:56.123456', "
        "'2026-02-28', 0.1, true, 'ü\"\\')",
        "INSERT INTO rows (id, long) VALUES (2, 'NaN')",
    )
    first, second = polling.ask(source(postgres)).bodies.to_pylist()
    assert first.decode() == (
        '{"id":1,"long":1.12345678901234567890123450,"huge":1' + "0" * 50 + ',"money":3.10,'
        '"wall":"2026-03-29T02:30:00.123456","moment":"2026-11-26T11:00:00.000001Z",'
        '"bytes":"AP8=","name":"c4cfd37f-f418-4248-8bec-2eb6a54843e9","doc":"{\\"x\\": 1}",'
        '"words":["a",null],"clock":"12:34:56.123456","day":"2026-02-28","ratio":0.1,"yes":true,'
        '"text":"ü\\"\\\\"}'
    )
    assert second == b'{"id":2}'


def test_uncommitted_number_is_waited_for(polling: Polling, postgres: RealPostgres) -> None:
    """Later numbers are taken with it; behind one that never comes, once it has settled."""
    postgres.run("CREATE TABLE rows (id bigserial PRIMARY KEY, note text)")
    taken = Taken(polling, source(postgres, track=TrackColumn(column="id", start_from="1")))
    with postgres.connect() as slow, slow.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO rows (note) VALUES ('first')")
        postgres.run("INSERT INTO rows (note) VALUES ('second'), ('third')")
        assert taken.poll() == []
        cursor.execute("COMMIT")
    assert [row["note"] for row in taken.poll()] == ["first", "second", "third"]
    assert taken.poll() == []
    short = TrackColumn(column="id", start_from="1", settle_seconds=2.0)
    taken.options = source(postgres, track=short)
    postgres.run("SELECT nextval('rows_id_seq')", "INSERT INTO rows (note) VALUES ('fifth')")
    assert taken.poll() == []
    time.sleep(2.2)
    assert [row["id"] for row in taken.poll()] == [5]


def test_uncommitted_time_is_waited_for(polling: Polling, postgres: RealPostgres) -> None:
    """`now()` is when a transaction began."""
    postgres.run("CREATE TABLE rows (note text, written timestamptz DEFAULT now())")
    track = TrackColumn(column="written", settle_seconds=8.0)
    taken = Taken(polling, source(postgres, track=track))
    with postgres.connect() as slow, slow.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO rows (note) VALUES ('first')")
        postgres.run("INSERT INTO rows (note) VALUES ('second')")
        assert taken.poll() == []
        time.sleep(1)
        cursor.execute("COMMIT")

    def both_are_taken() -> bool:
        taken.poll()
        return len(taken.rows) >= 2

    wait_for(both_are_taken, pause_seconds=0.5)
    assert [row["note"] for row in taken.rows] == ["first", "second"]


class Writers:
    """Six that insert and update in transactions of up to ``LONGEST_SECONDS``, which they commit in
    any order or roll back. ``committed`` has each version of each row that was committed."""

    def __init__(self, postgres: RealPostgres, *, updates: bool) -> None:
        self._postgres = postgres
        self._updates = updates
        self._until = time.monotonic() + WRITING_SECONDS
        self._lock = threading.Lock()
        self.committed: list[tuple[int, int]] = []
        self._threads = [
            threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _write(self, number: int) -> None:
        chance = random.Random(number)
        mine: dict[int, int] = {}
        with self._postgres.connect() as connection, connection.cursor() as cursor:
            while time.monotonic() < self._until:
                changed: dict[int, int] = {}
                began = time.monotonic()
                cursor.execute("BEGIN")
                for _ in range(chance.randint(1, 20)):
                    cursor.execute("INSERT INTO rows (version) VALUES (0) RETURNING id")
                    changed[cursor.fetchall()[0][0]] = 0
                for id_ in chance.sample(sorted(mine), min(3, len(mine))) if self._updates else ():
                    cursor.execute(
                        f"UPDATE rows SET version = version + 1, written = now() WHERE id = {id_}"
                    )
                    changed[id_] = mine[id_] + 1
                time.sleep(chance.random() ** 4 * LONGEST_SECONDS)
                if chance.random() < 0.2 or time.monotonic() - began > SETTLE_SECONDS - 1:
                    cursor.execute("ROLLBACK")
                    continue
                cursor.execute("COMMIT")
                mine |= changed
                with self._lock:
                    self.committed += changed.items()


def settle(taken: Taken, writers: Writers) -> None:
    """Poll while they write, and until all rows have settled."""
    while writers.at_work:
        taken.poll()
    end = time.monotonic() + SETTLE_SECONDS * 1.5
    while time.monotonic() < end:
        time.sleep(0.5)
        taken.poll()


def test_each_row_is_taken_once_by_its_number(polling: Polling, postgres: RealPostgres) -> None:
    postgres.run(
        "CREATE TABLE rows (id bigserial PRIMARY KEY, version int)",
        "INSERT INTO rows (version) SELECT 0 FROM generate_series(1, 500)",
    )
    track = TrackColumn(column="id", settle_seconds=SETTLE_SECONDS)
    taken = Taken(polling, source(postgres, track=track), page_rows=200)
    writers = Writers(postgres, updates=False)
    settle(taken, writers)
    ids = [row["id"] for row in taken.rows]
    wanted = sorted([*range(1, 501), *(id_ for id_, _ in writers.committed)])
    assert len(wanted) > 700 and max(wanted) > len(wanted)
    assert ids == wanted
    assert max(taken.pages) < 200 and len(taken.pages) > 3


@pytest.mark.parametrize("key", [None, "id"])
def test_each_version_is_taken_once_by_its_time(
    polling: Polling, postgres: RealPostgres, key: str | None
) -> None:
    """Of a version that another has replaced before it had settled none is seen."""
    postgres.run(
        "CREATE TABLE rows (id bigserial PRIMARY KEY, version int, "
        "written timestamptz DEFAULT now())",
        "CREATE INDEX ON rows (written)",
    )
    track = TrackColumn(column="written", key=key, settle_seconds=SETTLE_SECONDS)
    taken = Taken(polling, source(postgres, track=track), page_rows=100)
    writers = Writers(postgres, updates=True)
    settle(taken, writers)
    versions = Counter((row["id"], row["version"]) for row in taken.rows)
    assert set(versions.values()) == {1}
    assert set(versions) <= set(writers.committed)
    last = dict(sorted(writers.committed))
    assert len(last) > 200 and max(last.values()) > 0
    assert set(last.items()) <= set(versions)
    times = [row["written"] for row in taken.rows]
    assert times == sorted(times)


def test_row_that_changes_repeatedly_is_taken_in_each_version(
    polling: Polling, postgres: RealPostgres
) -> None:
    postgres.run(
        "CREATE TABLE rows (id int, version int, written timestamp DEFAULT timezone('UTC', now()))",
        "INSERT INTO rows VALUES (1, 0)",
    )
    taken = Taken(
        polling, source(postgres, track=TrackColumn(column="written", settle_seconds=0.2))
    )
    for version in range(1, 4):
        time.sleep(0.3)
        taken.poll()
        postgres.run(
            f"UPDATE rows SET version = {version}, written = timezone('UTC', clock_timestamp())"
        )
    time.sleep(0.3)
    taken.poll()
    assert [row["version"] for row in taken.rows] == [0, 1, 2, 3]


def test_rows_with_the_same_time_at_the_end_of_a_page_are_in_one_answer(
    polling: Polling, postgres: RealPostgres
) -> None:
    """With a key they may be in several; too many are refused, with the option to set."""
    postgres.run(
        "CREATE TABLE rows (id int, written timestamptz)",
        "INSERT INTO rows SELECT n, '2026-01-01T00:00:00.123456Z'::timestamptz + n / 70 * "
        "interval '1 microsecond' FROM generate_series(0, 349) n",
    )
    track = TrackColumn(column="written", settle_seconds=1)
    taken = Taken(polling, source(postgres, track=track), page_rows=100)
    taken.poll()
    assert sorted(row["id"] for row in taken.rows) == list(range(350))
    assert set(taken.pages) == {70}
    taken = Taken(polling, source(postgres, track=track), page_rows=50)
    taken.poll()
    assert sorted(row["id"] for row in taken.rows) == list(range(350))
    taken = Taken(polling, source(postgres, track=track), page_rows=5)
    with pytest.raises(UserError, match=r"or more rows have 2026-01-01 .*track: key"):
        taken.poll()
    keyed = TrackColumn(column="written", key="id", settle_seconds=1)
    taken = Taken(polling, source(postgres, track=keyed), page_rows=50)
    taken.poll()
    assert [row["id"] for row in taken.rows] == list(range(350))
    assert len(taken.pages) > 5


def test_rows_with_equal_tracking_values_are_refused(
    polling: Polling, postgres: RealPostgres
) -> None:
    postgres.run("CREATE TABLE rows (id int)", "INSERT INTO rows VALUES (1), (2), (2), (3)")
    for page_rows in (2, 100):
        track = TrackColumn(column="id", start_from="1")
        taken = Taken(polling, source(postgres, track=track), page_rows=page_rows)
        with pytest.raises(UserError, match="several rows have 2 in id"):
            while True:
                taken.poll()


def test_answer_is_bounded_to_some_mib(polling: Polling, postgres: RealPostgres) -> None:
    postgres.run(
        "CREATE TABLE rows (id int, text text)",
        "INSERT INTO rows SELECT n, repeat('x', 1000000) FROM generate_series(1, 30) n",
    )
    track = TrackColumn(column="id", start_from="1")
    options = source(postgres, track=track, fetch_rows=2)
    taken = Taken(polling, options)
    taken.poll()
    assert [row["id"] for row in taken.rows] == list(range(1, 31))
    assert 3 <= len(taken.pages) <= 5
    postgres.run("INSERT INTO rows SELECT n, repeat('x', 1000000) FROM generate_series(31, 80) n")
    with pytest.raises(UserError, match="64 MiB"):
        polling.ask(source(postgres, fetch_rows=2))


def test_queries_columns_and_quoted_names_are_polled(
    polling: Polling, postgres: RealPostgres
) -> None:
    postgres.run(
        'CREATE TABLE rows ("Id" int, total numeric, "At" timestamp)',
        "INSERT INTO rows VALUES (7, 1.50, '2026-11-26 12:00:00'), (8, 2, '2026-11-26 13:00:00')",
    )
    query = "SELECT * FROM rows WHERE total < 2 -- and no more"
    track = TrackColumn(column='"Id"', settle_seconds=0)
    options = source(postgres, query=query, columns=("total",), track=track)
    assert Taken(polling, options).poll() == [{"total": 1.5}]
    at = TrackColumn(
        column='"At"', start_from="2026-11-26T13:00:00+01:00", time_zone="Europe/Berlin"
    )
    options = source(postgres, columns=('"Id"',), track=at)
    assert [row["Id"] for row in Taken(polling, options).poll()] == [8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nowhere"}, r'relation "nowhere" does not exist; check table'),
        ({"query": "SELEC 1"}, "syntax error"),
        ({"track": TrackColumn(column="nothing")}, r"column q\.nothing does not exist"),
        ({"password": "${secret:wrong}"}, "authentication failed.*check username"),
        ({"url": "jdbc:mysql://127.0.0.1/x"}, "no driver for mysql://.*spark.packages"),
        ({"url": "jdbc:postgresql://{at}/nowhere"}, 'database "nowhere" does not exist'),
        ({"query": "SELECT 1 / (id - 1) AS n FROM rows"}, "division by zero"),
        ({"query": "SELECT id, id FROM rows"}, "id"),
        ({"track": TrackColumn(column="text")}, "cannot be tracked"),
        ({"track": TrackColumn(column="id", kind="timestamp")}, "not of the kind timestamp"),
    ],
)
def test_options_that_a_person_must_correct_are_reported(
    polling: Polling, postgres: RealPostgres, options: dict[str, Any], message: str
) -> None:
    postgres.run("CREATE TABLE rows (id int, text text)", "INSERT INTO rows VALUES (1, 'x')")
    if "url" in options:
        options = {"url": options["url"].format(at=f"{postgres.host}:{postgres.port}")}
    with pytest.raises(UserError, match=message) as caught:
        polling.ask(source(postgres, **options))
    assert postgres.password not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": f"jdbc:postgresql://127.0.0.1:{free_port()}/x"}, "refused"),
        ({"query": "SELECT pg_sleep(30)::text AS x", "timeout_seconds": 1}, "canceling statement"),
        ({"query": "SELECT pg_terminate_backend(pg_backend_pid()) AS x"}, "terminating connection"),
    ],
)
def test_temporary_database_errors_are_unavailable(
    polling: Polling, postgres: RealPostgres, options: dict[str, Any], message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=message):
        polling.ask(source(postgres, **options))
    assert time.monotonic() - began < 25


def test_locked_table_and_hanging_server_cost_time_only(
    polling: Polling, postgres: RealPostgres
) -> None:
    need_own(postgres)
    postgres.run("CREATE TABLE rows (id int)", "INSERT INTO rows VALUES (1)")
    options = source(postgres, timeout_seconds=2, track=TrackColumn(column="id", start_from="1"))
    taken = Taken(polling, options)
    for hang in ("locked", "frozen"):
        began = time.monotonic()
        with postgres.connect() as stranger, stranger.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE rows IN ACCESS EXCLUSIVE MODE")
            if hang == "frozen":
                postgres.freeze()
            try:
                with pytest.raises(UnavailableError):
                    taken.poll()
            finally:
                postgres.thaw()
            cursor.execute("ROLLBACK")
        assert time.monotonic() - began < 45
    assert taken.poll() == [{"id": 1}]


def test_closed_poll_ends_at_once(polling: Polling, postgres: RealPostgres) -> None:
    polling.begin(source(postgres, query="SELECT pg_sleep(50)::text AS x"))
    time.sleep(3)
    began = time.monotonic()
    polling.close_poll()
    with pytest.raises(UnavailableError, match="closed"):
        polling.end()
    assert time.monotonic() - began < 20


def test_spark_writes_the_password_nowhere(
    polling: Polling, postgres: RealPostgres, event_log: Path
) -> None:
    postgres.run("CREATE TABLE rows (id int)", "INSERT INTO rows VALUES (1)")
    polling.ask(source(postgres, track=TrackColumn(column="id")))
    time.sleep(1)
    texts = [content for _, content in contents_below(event_log)]
    assert any(b"flumeng_number" in text for text in texts), "the statements are not there"
    assert not any(postgres.password.encode() in text for text in texts)
