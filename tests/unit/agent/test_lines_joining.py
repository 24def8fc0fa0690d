"""Lines of real formats become events: bodies, attributes and the groups of presets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from flumeng.agent.collector.lines import JoinedRange
from flumeng.agent.collector.lines.joining import find_groups, join
from flumeng.agent.collector.lines.reader import JoinLines
from flumeng.agent.collector.lines.rules import Rules
from flumeng.config.multiline import KEY, Multiline
from flumeng.connectors.api.ranged import Progress, Range, UnreadableError
from flumeng.connectors.ranged import reports
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform.errors import CorruptError, UserError

JAVA = """\
2026-11-20 10:00:00,123 ERROR main request 7 failed
java.lang.IllegalStateException: no session
	at app.Server.call(Server.java:31)
	at app.Server.lambda$main$0(Server.java:12)
	Suppressed: java.io.IOException: close failed
		at java.base/java.net.Socket.close(Socket.java:7)
Caused by: java.io.IOException: broken pipe
	at java.base/java.net.Socket.write(Socket.java:99)
	... 12 more
Caused by: com.example.Outer$InnerException
	at app.Pipe.write(Pipe.java:3)
	... 13 more
2026-11-20 10:00:01,000 INFO main request 8 done
2026-11-20 10:00:02,000 INFO main java.lang.Error: is only mentioned
Exception in thread "main" java.lang.OutOfMemoryError: Java heap space
	at app.Cache.grow(Cache.java:5)"""
JAVA_EVENTS = [12, 1, 1, 2]
PYTHON = """\
2026-11-20 10:00:00,123 ERROR request 7 failed
Traceback (most recent call last):
  File "/app/server.py", line 7, in call
    session = sessions[name]
              ~~~~~~~~^^^^^^
KeyError: 'seven'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/server.py", line 9, in call
    raise app.errors.NoSession(name) from None
app.errors.NoSession: seven
ERROR:root:another line of the log
INFO: one more
2026-11-20 10:00:02,000 INFO fine
Traceback (most recent call last):
  File "/app/server.py", line 12, in <module>
KeyboardInterrupt"""
PYTHON_EVENTS = [13, 1, 1, 4]
GO = """\
2026/11/20 10:00:00 listening on :8080
panic: runtime error: index out of range [5] with length 3

goroutine 1 [running]:
main.(*Server).call(0xc000010000, {0x1, 0x2})
	/app/server.go:31 +0x1d
net/http.(*conn).serve(0xc00001, {0x7, 0x8})
	/usr/local/go/src/net/http/server.go:2009 +0x5f4
main.main()
	/app/server.go:12 +0x25
created by net/http.(*Server).Serve in goroutine 1
	/usr/local/go/src/net/http/server.go:3086 +0x5cb
exit status 2
2026/11/20 10:00:01 listening on :8080"""
GO_EVENTS = [1, 12, 1]


def batch(
    bodies: Sequence[bytes | None],
    attrs: Sequence[Mapping[str, str]] | None = None,
    times: Sequence[int] | None = None,
    first: int = 0,
) -> pa.RecordBatch:
    count = len(bodies)
    columns = {
        "body": bodies,
        "ts": times or range(count),
        "host": ["h"] * count,
        "attrs": [list(one.items()) for one in attrs or [{}] * count],
        "journal": ["j"] * count,
        "seq": range(first, first + count),
        "replayed": [False] * count,
    }
    arrays = [pa.array(columns[name.name], name.type) for name in READ_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=READ_SCHEMA)


def joined(lines: pa.RecordBatch, multiline: Multiline, *, flush: bool = True) -> pa.Table:
    end = lines.num_rows
    groups = find_groups(lines, Progress(0, 0), end, Rules.of(multiline), flush=flush)
    return pa.Table.from_batches(join(lines, groups), READ_SCHEMA)


BASE_CLASSES = """\
2026-11-28 05:00:00,123 ERROR [main] shop.Cart - circular
java.lang.Exception: circular
	at Tr.main(Tr.java:13)
Caused by: java.lang.Exception: two
	... 8 more
Caused by: [CIRCULAR REFERENCE: java.lang.Exception: circular]
2026-11-28 05:00:00,123 ERROR [main] shop.Cart - own class, inner
Tr$OutOfStock: item 7
	at Tr.main(Tr.java:9)
2026-11-28 05:00:00,123 ERROR [main] shop.Cart - base classes
java.lang.Error
	at Tr.main(Tr.java:9)
2026-11-28 05:00:00,123 ERROR [main] shop.Cart - end"""
BASE_CLASSES_EVENTS = [6, 3, 3, 1]

DOTNET = """\
2026-11-28 05:00:00 [ERR] order 7 failed
System.InvalidOperationException: no session
 ---> System.IO.IOException: broken pipe
   at Shop.Net.Write(Byte[] data) in /src/Shop/Net.cs:line 99
   --- End of inner exception stack trace ---
   at Shop.Server.Call(Int32 id) in /src/Shop/Server.cs:line 31
--- End of stack trace from previous location ---
   at Shop.Program.Main(String[] args)
2026-11-28 05:00:01 [ERR] native
System.Runtime.InteropServices.COMException (0x80004005): unspecified
   at Shop.Program.Main(String[] args)
2026-11-28 05:00:02 [INF] end"""
DOTNET_EVENTS = [8, 3, 1]

RUBY = """\
I, [2026-11-28T10:26:25.045791 #10702]  INFO -- : start
E, [2026-11-28T10:26:25.045879 #10702] ERROR -- : wrapped (RuntimeError)
t.rb:5:in `rescue in b'
t.rb:5:in `b'
t.rb:7:in `<main>'
I, [2026-11-28T10:26:25.045907 #10702]  INFO -- : after 1
t.rb:5:in `rescue in b': wrapped (RuntimeError)
	from t.rb:5:in `b'
	from t.rb:11:in `<main>'
t.rb:4:in `a': item 7 (OutOfStock)
	from t.rb:5:in `b'
	from t.rb:11:in `<main>'
I, [2026-11-28T10:26:25.045997 #10702]  INFO -- : end"""
RUBY_EVENTS = [1, 4, 7, 1]


JAVA_MESSAGES = """\
2026-11-28 05:00:00,123 ERROR [main] shop.Cart - own toString
Aborted by user
	at Tr.main(Tr.java:14)
2026-11-28 05:00:00,123 ERROR [main] shop.Cart - multi-line message
java.lang.RuntimeException: first line
second line of message

after empty line
	at Tr.main(Tr.java:10)
Caused by: java.lang.Exception: ORA-00001: unique constraint
Detail: Key (id)=(1) exists.
	... 8 more
another line
Exception in thread "worker" java.lang.IllegalStateException: no session
	at Tr.a(Tr.java:6)
Nov 28, 2026 5:11:11 AM Tr main
SEVERE: jul message
java.lang.RuntimeException: jul
	at Tr.main(Tr.java:22)"""
JAVA_MESSAGES_EVENTS = [3, 9, 1, 2, 1, 3]

PYTHON_MESSAGES = """\
2026-11-28 05:10:13,314 ERROR shop group failed
  + Exception Group Traceback (most recent call last):
  |   File "p1.py", line 8, in group
  | ExceptionGroup: two failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: a
    +------------------------------------
2026-11-28 05:10:13,315 ERROR shop own class, module __main__
Traceback (most recent call last):
  File "p1.py", line 13, in <module>
OutOfStock: item 7
2026-11-28 05:10:13,315 ERROR shop notes
Traceback (most recent call last):
  File "p1.py", line 24, in <module>
ValueError: with note
note: check the config
and the weather
2026-11-28 05:10:13,347 INFO shop end
a line without a time
Traceback (most recent call last):
  File "p1.py", line 24, in <module>
OutOfStock: item 8
another line"""
PYTHON_MESSAGES_EVENTS = [7, 4, 6, 1, 4, 1]

RUST = """\
2026-11-28T05:00:00Z INFO shop: after 1

thread '<unnamed>' (30924) panicked at p.rs:9:30:
first line
second line

fourth line
stack backtrace:
   0: std::panicking::begin_panic::<&str>
             at /rustc/59807616/library/std/src/panicking.rs:761:5
   1: p::main::{{closure}}
             at ./p.rs:9:30
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
plain line
thread 'worker' (30913) panicked at p.rs:7:67:
boom
plain line"""
RUST_EVENTS = [2, 11, 1, 2, 1]

RUBY_MESSAGES = """\
E, [2026-11-28T10:53:57.871092 #32268] ERROR -- : wrapped
more (RuntimeError)
t.rb:5:in `rescue in b'
t.rb:7:in `<main>'
I, [2026-11-28T10:53:57.871222 #32268]  INFO -- : end
plain line"""
RUBY_MESSAGES_EVENTS = [4, 1, 1]


@pytest.mark.parametrize(
    ("preset", "text", "counts"),
    [
        ("java", JAVA, JAVA_EVENTS),
        ("java", BASE_CLASSES, BASE_CLASSES_EVENTS),
        ("python", PYTHON, PYTHON_EVENTS),
        ("go", GO, GO_EVENTS),
        ("dotnet", DOTNET, DOTNET_EVENTS),
        ("ruby", RUBY, RUBY_EVENTS),
        ("java", JAVA_MESSAGES, JAVA_MESSAGES_EVENTS),
        ("python", PYTHON_MESSAGES, PYTHON_MESSAGES_EVENTS),
        ("rust", RUST, RUST_EVENTS),
        ("ruby", RUBY_MESSAGES, RUBY_MESSAGES_EVENTS),
    ],
)
def test_preset_joins_the_lines_of_a_trace(preset: str, text: str, counts: list[int]) -> None:
    lines = text.split("\n")
    multiline = Multiline(preset=preset)  # type: ignore[arg-type]
    events = joined(batch([line.encode() for line in lines]), multiline)
    bodies = [body.decode() for body in events["body"].to_pylist()]
    assert [body.count("\n") + 1 for body in bodies] == counts
    assert "\n".join(bodies) == text


def test_an_event_is_its_first_line_with_the_bodies_of_all() -> None:
    bodies = [b"a 1", b"b 1", b" a 2", b"\xff b 2", b" b 3", b"a 2"]
    streams = [{"path": name} for name in "abaxba"]
    streams[0]["lines"] = "many"
    lines = batch(bodies, streams)
    events = joined(lines, Multiline(continues="^ "), flush=False)
    assert events.drop_columns(["attrs"]).to_pylist() == [
        {**lines.drop_columns(["attrs"]).slice(0, 1).to_pylist()[0], "body": b"a 1\n a 2"}
    ]
    assert events["attrs"].to_pylist() == [[("path", "a"), ("lines", "2")]]
    all_events = joined(lines, Multiline(continues="^ "))
    assert all_events["body"].to_pylist() == [b"a 1\n a 2", b"b 1\n b 3", b"\xff b 2", b"a 2"]
    assert all_events["attrs"].to_pylist()[1:] == [
        [("path", "b"), ("lines", "2"), ("multiline_closed", "timeout")],
        [("path", "x"), ("lines", "1")],
        [("path", "a"), ("lines", "1")],
    ]


def test_limit_that_closed_an_event_is_noted_in_it() -> None:
    bodies = [b"start", b" 1", b" 2", b" 3", b"start", b" " + b"x" * 1020, b" 4", b"start", b" 5"]
    times = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    multiline = Multiline(continues="^ ", max_lines=3, max_bytes=1028, timeout_seconds=0.1)
    lines = batch([*bodies, b" late", b"start"], None, [*times, 10**6, 10**6])
    events = joined(lines, multiline)
    told = [
        (dict(attrs)["lines"], dict(attrs).get("multiline_closed"))
        for attrs in events["attrs"].to_pylist()
    ]
    assert told == [
        ("3", "max_lines"), ("1", None), ("2", "max_bytes"), ("1", None), ("2", "timeout"),
        ("1", None), ("1", None),
    ]  # fmt: skip


def test_single_line_is_never_cut_by_max_bytes() -> None:
    large = b"x" * 5000
    events = joined(batch([large, b" y", b"z"]), Multiline(continues="^ ", max_bytes=1024))
    assert events["body"].to_pylist() == [large, b" y", b"z"]


def test_empty_batch_gives_no_event() -> None:
    assert joined(batch([]), Multiline(continues="^ ")).num_rows == 0
    assert joined(batch([None, b" a"]), Multiline(continues="^ "))["body"].to_pylist() == [b"\n a"]


def test_streams_are_distinguished_by_columns_and_attributes() -> None:
    attrs = [{"path": "a"}, {"path": "b"}, {}, {"peer": "a"}, {"path": "a", "peer": "a"}]
    lines = batch([b""] * 5, attrs)
    numbers = Rules.of(Multiline(continues="^ ")).streams(lines)
    assert len(set(numbers.tolist())) == 5
    by_host = Rules.of(Multiline(continues="^ ", key=("host",))).streams(lines)
    assert set(by_host.tolist()) == {0}
    assert "path" in KEY


def test_a_pattern_that_re2_does_not_take_is_refused() -> None:
    with pytest.raises(UserError, match="multiline: "):
        Rules("(?=a)", False, KEY, 1, 2, 3).check()


@dataclass
class Source:
    """``bad`` is the offset at which reading fails."""

    lines: pa.RecordBatch
    step: int
    bad: int | None = None
    schema = READ_SCHEMA
    modules: frozenset[str] = frozenset()

    def read(self, piece: Range, _address: str) -> Iterator[pa.RecordBatch]:
        for offset in range(piece.start, piece.end, self.step):
            if self.bad is not None and offset >= self.bad:
                raise CorruptError("bits")
            yield self.lines.slice(offset, min(self.step, piece.end - offset))


@pytest.mark.parametrize("step", [1, 3, 100])
def test_range_is_read_in_steps_and_its_progress_reported(step: int) -> None:
    lines = batch([b"%d" % n if n % 3 == 0 else b" %d" % n for n in range(20)])
    rules = Rules.of(Multiline(continues="^ "))
    reader = JoinLines(Source(lines, step), rules, step_rows=4)
    piece = Range("j", 0, 20)
    with reports.collecting() as made:
        events = [body for one in reader.read(piece, "") for body in one["body"].to_pylist()]
    assert events == [b"%d\n %d\n %d" % (n, n + 1, n + 2) for n in range(0, 18, 3)]
    told = made.notes["j"]
    assert isinstance(told, JoinedRange)
    assert (told.piece, told.progress) == (piece, Progress(18, 18))
    assert told.closed == {"timeout": 0, "max_lines": 0, "max_bytes": 0}


def test_unreadable_line_is_reported_by_its_offset() -> None:
    lines = batch([b" a"] * 20)
    source, rules = Source(lines, 5, bad=10), Rules.of(Multiline(continues="^ "))
    reader = JoinLines(source, rules)
    with reports.collecting() as made, pytest.raises(UnreadableError) as raised:
        list(reader.read(Range("j", 0, 20), ""))
    assert raised.value.offset == 10
    assert made.notes == {}
