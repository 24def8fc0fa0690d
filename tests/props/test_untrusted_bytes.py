"""Any bytes at any parser: their value or a typed error, in bounded time and memory.

One table of the parsers of bytes of others: a sender, a server, a disk, a person. Streams and
bodies of senders, journals and frames have tests of their own (``test_ingest_fuzz``,
``test_journal_bytes``, ``test_journal_hostile``). ``FLUMENG_TEST_EXAMPLES`` says how much is tried.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import resource
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flumeng.agent.ingest.source_states import NotedState
from flumeng.agent.node import protocol
from flumeng.agent.node.data_directory import ASSIGNMENT, CLAIM, FLOWS, DataDirectory
from flumeng.config import check_flow, document, expressions, policy, statements
from flumeng.config.column_kinds import EVENT
from flumeng.connectors.api.ranged import Range, UnreadableError
from flumeng.connectors.elasticsearch import bulk_response
from flumeng.connectors.kafka import columns as kafka_columns
from flumeng.connectors.objects.options import Format, ObjectsSource
from flumeng.connectors.objects.reader import ObjectsReader
from flumeng.connectors.objects.seen_hashes import SeenHashes
from flumeng.connectors.objects.seen_objects import MARK, seen
from flumeng.connectors.polls import answers, http_client, http_records, json_paths, sql_state
from flumeng.connectors.polls.http_poll import State
from flumeng.connectors.tail import file_position
from flumeng.connectors.tail.file_position import FileKey, FilePosition
from flumeng.control.commands import cluster
from flumeng.control.snapshot import items
from flumeng.control.snapshot.items import Item
from flumeng.filters.options import grok, log_formats, time_formats
from flumeng.filters.options.parse import Parse
from flumeng.fleet.inventory import cluster_file, sites_file
from flumeng.journal.serving import watch
from flumeng.journal.serving.wire import make_ticket, parse_ticket
from flumeng.platform import durable_files
from flumeng.platform.errors import CorruptError, UserError
from flumeng.platform.options import patterns, quantities
from flumeng.platform.options.problems import SpecError
from tests.testkit.formats import READERS, read_bodies
from zkschema import codec, records
from zkschema.codec import DecodeError
from zkschema.records import Record

TOP = Path(__file__).parents[2]
EXAMPLES = int(os.environ.get("FLUMENG_TEST_EXAMPLES", "60"))
SECONDS_EACH = 30.0
"""Time limit for one small input on a shared machine."""
MEMORY_BYTES = 1 << 30
"""Memory that a process may take besides, for any input."""

Parser = Callable[[bytes], object]


@dataclass(frozen=True)
class Parsed:
    """``refusals``: the exceptions that it may raise. ``samples`` are valid inputs; ``words`` are
    fragments with a meaning."""

    parse: Parser
    refusals: tuple[type[Exception], ...]
    samples: Sequence[bytes]
    words: Sequence[bytes] = ()


def texts(parse: Callable[[str], object]) -> Parser:
    return lambda data: parse(data.decode("utf-8", "replace"))


FLOWS_GIVEN = [file.read_bytes() for file in sorted((TOP / "conf" / "flows").rglob("*.yaml"))]
JSON = (b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"1e999", b"-", b"\\ud800", b"9" * 5000,
        b"[" * 20_000, b'{"a":' * 20_000, b"NaN", b"true")  # fmt: skip
YAML = (b": ", b"- ", b"\n", b"  ", b"{", b"[", b"&a ", b"*a ", b"!!python/name:os.system ", b"|\n",
        b"<<: ", b"? ", b"%YAML 1.2\n---\n", b"\t", b"[" * 3000, b"{a: " * 3000)  # fmt: skip
REGEX = (b"(", b")", b"(?:", b"(?P<a>", b"a", b"*", b"+", b"{1,9999999999}", b"{9}{9}{9}{9}", b"|",
         b"[", b"]", b"\\", b"\\p{L}", b"(?i)", b"(?=", b"%{", b"}", b"%{IP:a}", b"(" * 3000,
         b"(?#", b"\\x{10ffff}", b".*" * 400)  # fmt: skip
SQL = (b"(", b")", b"a", b" AND ", b"'", b'"', b"`", b" NOT ", b"CASE WHEN ", b" THEN ", b" END",
       b"--", b"/*", b"CAST(", b" AS ", b"INT", b"SELECT ", b" FROM events ", b" WITH ", b" JOIN ",
       b"x'", b"0x", b"1e", b"9" * 500, b"(" * 500, b"NOT " * 500, b"::", b"[", b"]")  # fmt: skip
BODIES = (
    b'<34>1 2026-11-09T12:00:00Z h app 1 ID [x a="1"] text',
    b"<13>Nov  9 12:00:00 h app[3]: text",
    b'{"a":"x","n":1.5,"i":3,"t":"2026-11-09T12:00:00Z","l":[1,2]}',
    b'a=1 b="two words" n=1.5 i=3 t=2026-11-09T12:00:00Z',
    b"x,1.5,3,2026-11-09T12:00:00Z",
    b'192.0.2.1 - - [09/Nov/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x"',
    b"2026-11-09T12:00:00.1Z stdout F text",
    b'{"log":"text\\n","stream":"stdout","time":"2026-11-09T12:00:00Z"}',
    b"CEF:0|v|p|1|id|name|5|src=192.0.2.1 msg=a b",
    b"LEEF:2.0|v|p|1|id|^|src=192.0.2.1^msg=a b",
    b"2026-11-09T12:00:00Z some text 1.5",
)
"""One body for each format; each format reads all of them."""


def tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def packed(codec_: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec_) as out:
        out.write(data)
    return bytes(sink.getvalue())


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    rows = pa.table({"n": range(50), "a": [f"text {n}" for n in range(50)], "l": [[1, 2]] * 50})
    pq.write_table(rows, sink, compression="zstd", row_group_size=20)
    return bytes(sink.getvalue())


def avro(codec_: str) -> bytes:
    fields = [{"name": "n", "type": "long"}, {"name": "a", "type": ["null", "string"]},
              {"name": "l", "type": {"type": "array", "items": "double"}}]  # fmt: skip
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    out = io.BytesIO()
    rows = [{"n": n, "a": None if n % 3 else "x" * n, "l": [1.5] * (n % 4)} for n in range(60)]
    fastavro.writer(out, schema, rows, codec=codec_, sync_interval=300)
    return out.getvalue()


LINES = b"".join(b"line %d of text\n" % n for n in range(200))
CSV = b'a,b,c\n1,two,"3 ""x"""\n' * 40
JSONS = b'{"a":1,"b":[1,{"c":null}],"d":"x\\u00e9"}\n' * 40
OBJECTS: dict[Format, Sequence[bytes]] = {
    "lines": [LINES],
    "csv": [CSV],
    "json": [JSONS, b"[" + JSONS.strip().replace(b"\n", b",") + b"]"],
    "parquet": [parquet()],
    "avro": [avro(name) for name in ("null", "deflate", "bzip2", "xz", "zstandard")],
}
BOMB = bytes(64 << 20)
PACKED = {
    "gz": [gzip.compress(LINES), gzip.compress(LINES) * 2, gzip.compress(BOMB, 1)],
    "zst": [packed("zstd", LINES), packed("zstd", BOMB)],
    "lz4": [packed("lz4", LINES)],
    "bz2": [bz2.compress(LINES)],
    "xz": [lzma.compress(LINES)],
    "tar": [tar({"a.log": LINES, "b/c.log": LINES, "x" * 200: b"x"})],
    "tar.gz": [gzip.compress(tar({"a.log": LINES, "b.log.gz": gzip.compress(LINES)}))],
    "zip": [zipped({"a.log": LINES, "b.gz": gzip.compress(LINES)}), zipped({"a": BOMB})],
}


def read_object(form: Format, suffix: str, data: bytes) -> int:
    """Returns the number of events."""
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(data)
        file.flush()
        status = Path(file.name).stat()
        item = Item(0, file.name, status.st_size, status.st_mtime_ns // 1000)
        source = ObjectsSource(paths=("/in/*",), format=form, archives=True)
        piece = Range("web.objects.0", 0, item.end)
        count = 0
        for batch in ObjectsReader.of(source).read(piece, items.encode([item])):
            batch.validate(full=True)
            count += batch.num_rows
        return count


def bodies_as(options: Parse, data: bytes) -> object:
    return read_bodies(options, data, b"x", data[:9])


def of_headers(data: bytes) -> object:
    """Headers as librdkafka returns them: names and values of any bytes, several in a message."""
    pieces = data.split(b"\0")
    names = pa.array([piece[:9] for piece in pieces], pa.binary())
    counts = np.array([len(pieces) // 2, len(pieces) - len(pieces) // 2])
    found = kafka_columns.maps(counts, kafka_columns.texts(names), pa.array(pieces, pa.binary()))
    found.validate(full=True)
    return found.to_pylist()


def in_file(use: Callable[[Path], object]) -> Parser:
    def parse(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "state.json"
            file.write_bytes(data)
            return use(file)

    return parse


def at_home(name: str, use: Callable[[DataDirectory], object]) -> Parser:
    def parse(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / name).write_bytes(data)
            home = DataDirectory(Path(directory))
            try:
                return use(home)
            finally:
                home.close()

    return parse


def noted_files(file: Path) -> object:
    state = NotedState(file).state
    return file_position.cursors(state), file_position.reused(state)


def seen_marks(data: bytes) -> object:
    for order in ("name", "modified"):
        buckets = {f"{MARK}0": data}
        known = seen(order, rewritten=False, window_seconds=60, buckets=buckets)
        known.after("/in")
        known.new("/in", [])
        known.changed()
    return None


def sent_whole(data: bytes, encoding: str) -> bytes:
    """The body of an answer, and its records in all forms."""
    limit = 1 << 20
    body = http_client.decoded(io.BytesIO(data), encoding, limit)
    assert len(body) <= limit + http_client.READ_BYTES
    return body


def records_in(data: bytes) -> None:
    path = json_paths.parse("a.b[*]?")
    for form in ("lines", "text"):
        http_records.records_of(data, form, ())
    whole = http_records.json_of(data)
    value = json_paths.value_at(whole, path[:1])
    if value is not None:
        json_paths.scalar(value)
    http_records.records_of(whole, "json", ())
    http_records.records_of(whole, "json", path)


def header_values(text: str) -> None:
    line = " ".join(text.split("\n"))
    http_client.after_seconds(line)
    target = http_records.next_link(line)
    if target is not None:
        http_client.joined("https://host/a?b=c", target)
    http_records.text_of(b"a\xff", line)


def charset(text: str) -> bytes:
    return http_records.text_of(b"\xff\xfea\0\xd8" * 9, f"text/plain; charset={text}")


def sites(text: str) -> object:
    return sites_file.read(document.compose(text))


def schema_documents(data: bytes) -> object:
    return cluster.documents({"/flows/web": data})


def kinds() -> Iterator[type[Record]]:
    pending = [Record]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind is not Record and kind.__module__ == records.__name__:
            yield kind


def record_of_any_kind(data: bytes) -> None:
    """Decode as each kind of record; a decoded record is equal after encoding."""
    text = codec.unpack(data)
    for kind in kinds():
        try:
            found = codec.decode(kind, text)
        except DecodeError:
            continue
        assert codec.decode(kind, codec.encode(found)) == found


def gzip_of(size: int) -> bytes:
    return gzip.compress(bytes(size), 1)


TICKET = make_ticket("web.n1.0.0a1b2c3d", 3, 9)
WATCH = b'{"journals":["web.n1.0.0a1b2c3d"],"gap_seconds":0.1,"heartbeat_seconds":2,"seconds":60}'
POSITION = FilePosition.new("/var/log/a.log", size=3, modified_ns=4).to_state()
TABLE: dict[str, Parsed] = {
    "ticket": Parsed(parse_ticket, (UserError,), [TICKET, b'{"tap":' + TICKET + b"}"], JSON),
    "watch": Parsed(watch.parse_request, (UserError,), [WATCH], JSON),
    "message of a child": Parsed(
        protocol.from_child, (protocol.MessageError,),
        [b'{"type":"ready","address":"h:1"}\n', b'{"type":"alive"}\n'], JSON,
    ),
    "records of ZooKeeper": Parsed(
        record_of_any_kind, (DecodeError,),
        [codec.encode(records.Cluster()), codec.encode(records.Assignment(chokes={"a": 1.0})),
         codec.encode(records.NodeStatus(assignment_version=3)), gzip_of(80 << 20),
         codec.encode(records.Node(uuid="u", roles=("collect",), zone="a"))], JSON,
    ),
    "exported documents": Parsed(
        schema_documents, (CorruptError,),
        [codec.encode(records.Cluster()), gzip_of(80 << 20)], JSON,
    ),
    "a flow": Parsed(texts(check_flow), (UserError,), FLOWS_GIVEN, YAML),
    "a policy": Parsed(
        texts(lambda text: policy.parse(text, "p")), (UserError,),
        [(TOP / "conf" / "node.yaml").read_bytes()], YAML,
    ),
    "sites": Parsed(
        texts(sites), (SpecError, UserError),
        [file.read_bytes() for file in sorted((TOP / "conf" / "sites").rglob("sites.yaml"))], YAML,
    ),
    "a file of a cluster": Parsed(
        texts(cluster_file.read), (SpecError, UserError),
        [file.read_bytes() for file in sorted((TOP / "conf" / "sites").rglob("cluster.yaml"))],
        YAML,
    ),
    "a regex": Parsed(
        texts(patterns.check_regex), (ValueError,), [b"(?P<a>[0-9]+) (?P<b>.*)"], REGEX
    ),
    "a search": Parsed(texts(patterns.check_search), (ValueError,), [b"[0-9]{3}-x"], REGEX),
    "grok": Parsed(
        texts(lambda text: grok.written_out(text, {})), (ValueError,),
        [b"%{IP:a} %{NUMBER:n:float} (?<own>x)", b"%{COMBINEDAPACHELOG}"], REGEX,
    ),
    "a log format": Parsed(
        texts(log_formats.read), (ValueError,),
        [b'$remote_addr - $remote_user [$time_local] "$request"', b'%h %l %u %t "%r" %>s %b'],
        (b"$", b"%", b"{", b"}", b"%{", b"}i", b"%>", b'\\"'),
    ),
    "a JSON path": Parsed(
        texts(json_paths.parse), (ValueError,), [b"a.b[0][*]?", b'["x"].y'],
        (b"[", b"]", b".", b"*", b"?", b'"', b"-1", b"9" * 5000),
    ),
    "a time format": Parsed(
        texts(time_formats.pattern), (ValueError,), [b"%Y-%m-%dT%H:%M:%S%z", b"yyyy-MM-dd HH:mm"],
        (b"%", b"Y", b"'", b"[", b"]", b"S" * 30, b"%%"),
    ),
    "a duration": Parsed(
        texts(quantities.duration), (ValueError,), [b"10 s", b"1.5 h", b"9" * 400],
        (b"1", b"e", b".", b" ", b"s", b"9" * 5000, b"inf", b"nan", b"_"),
    ),
    "a size": Parsed(
        texts(quantities.size), (ValueError,), [b"10 KiB", b"1.5 MB", b"9" * 400 + b".0 KiB"],
        (b"1", b"e", b".", b" ", b"s", b"9" * 5000, b"inf", b"nan", b"_"),
    ),
    "a condition": Parsed(
        texts(lambda text: expressions.check_condition(text, EVENT)), (ValueError,),
        [b"app = 'x' AND severity < 3", b"length(cast(body AS STRING)) > 3 OR NOT (seq IN (1, 2))"],
        SQL,
    ),
    "a statement": Parsed(
        texts(lambda text: statements.check(text, EVENT, {})), (ValueError,),
        [b"SELECT *, upper(app) AS x FROM events WHERE seq > 3"], SQL,
    ),
    "Kafka's headers": Parsed(of_headers, (), [b"a\0b\0a\0\xff\0", b"\0\0\0"]),
    "what a poll's server sends": Parsed(
        records_in, (UserError,),
        [b'{"a":{"b":[{"c":1},{"d":"x"}]}}', b'[{"a":1}]', b"a\nb\n"], JSON,
    ),
    "headers of a poll's server": Parsed(
        texts(header_values), (UserError,),
        [b'<https://h/2>; rel="next"', b"120", b"Wed, 21 Oct 2026 07:28:00 GMT",
         b"text/plain; charset=latin-1", b"text/plain; charset*0*=utf-8''x; charset*1=y",
         b"text/plain; charset*0*=utf-8''x; charset*=y"],
        (b"<", b">", b";", b"rel=", b'"', b"next", b"charset", b"=", b"*0", b"*", b"'", b"[", b"%",
         b"9" * 400, b" GMT", b"+9999"),
    ),
    "a charset": Parsed(
        texts(charset), (UserError,),
        b"utf-16 utf-7 hex zlib idna rot13 oem unicode_escape raw_unicode_escape undefined".split(),
        (b"-", b"_", b"utf", b"8", b"\0", b"*", b'"'),
    ),
    "the state of http_poll": Parsed(
        texts(State.of), (CorruptError,),
        [State(1, path="a", type="number").to_text().encode()], JSON,
    ),
    "the state of sql_poll": Parsed(
        texts(lambda text: sql_state.State.of(text, "id")), (CorruptError, UserError),
        [b'{"column":"id","value":"3","marks":[[1,2],[3,4]]}',
         b'{"column":"id","value":"3","marks":[[1,1e999]]}'], JSON,
    ),
    "an answer to a bulk": Parsed(
        lambda data: bulk_response.interpret(data, 2), (ValueError,),
        [b'{"errors":true,"items":[{"create":{"status":201}},{"index":{"status":400,"error":'
         b'{"type":"x","reason":"y","caused_by":{"type":"z"}}}}]}'], JSON,
    ),
    "a list of items": Parsed(
        texts(items.decode), (CorruptError,), [items.encode([Item(0, "/a", 1, 2)]).encode()], JSON
    ),
    "a list of answers": Parsed(
        texts(answers.decode), (CorruptError,),
        [answers.encode([answers.KeptAnswer(1, 2, 3, 4, "f")]).encode()], JSON,
    ),
    "hashes of what was seen": Parsed(
        lambda data: SeenHashes({"0": data}), (CorruptError,),
        [zlib.compress(bytes(64)), zlib.compress(BOMB, 1)],
    ),
    "marks of what was seen": Parsed(
        seen_marks, (CorruptError,), [b'["/in", "a"]', b'["/in", 5]'], JSON
    ),
    "a claim on a disk": Parsed(
        at_home(CLAIM, DataDirectory.claim), (UserError,), [b'{"number": 3, "token": "x"}'], JSON
    ),
    "an assignment on a disk": Parsed(
        at_home(ASSIGNMENT, DataDirectory.kept), (),
        [json.dumps({"version": 1, "assignment": codec.text_of(records.Assignment()),
                     "texts": [["web", 1, "x"]]}).encode()], JSON,
    ),
    "flows on a disk": Parsed(
        at_home(FLOWS, partial(DataDirectory.known_names, file=FLOWS)), (),
        [b'{"generation": "a", "flows": ["web"]}'], JSON,
    ),
    "an object on a disk": Parsed(
        in_file(durable_files.read_object), (CorruptError,), [b'{"a":1}'], JSON
    ),
    "positions on a disk": Parsed(
        in_file(noted_files), (CorruptError,),
        [json.dumps({file_position.state_key(FileKey(1, 2)): POSITION,
                     file_position.reused_key(FileKey(1, 3)): POSITION}).encode()], JSON,
    ),
    **{
        f"an answer in {name or 'plain'}": Parsed(
            partial(sent_whole, encoding=name), (CorruptError,), samples
        )
        for name, samples in {
            "": [LINES],
            "gzip": [gzip.compress(LINES), gzip.compress(BOMB, 1)],
            "deflate": [zlib.compress(LINES), zlib.compress(LINES)[2:-4], zlib.compress(BOMB, 1)],
        }.items()
    },
    **{
        f"an object of {form}": Parsed(partial(read_object, form, ""), (UnreadableError,), samples,
                                       JSON if form == "json" else (b",", b'"', b"\n", b"\r"))
        for form, samples in OBJECTS.items()
    },
    **{
        f"an object called {suffix}": Parsed(
            partial(read_object, "lines", f".{suffix}"), (UnreadableError,), samples
        )
        for suffix, samples in PACKED.items()
    },
    **{
        f"bodies as {name}": Parsed(
            partial(bodies_as, options), (), BODIES,
            (b'"', b"=", b" ", b"|", b"[", b"]", b"\\", b"\xff", b"\0", b"9" * 400, b"1e999999",
             b"99999-01-01T00:00:00Z", b"{", b"}", b",", b"<"),
        )
        for name, options in READERS.items()
    },
}  # fmt: skip
NUMBERS = (0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def bent(sample: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    """A sample with changed bits, numbers and pieces, or arbitrary bytes."""
    if not sample or chance.random() < 0.15:
        drawn = [chance.choice([*words, chance.randbytes(chance.randrange(9))]) for _ in range(9)]
        return b"".join(drawn[: chance.randrange(10)])
    data = bytearray(sample)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1) if chance.random() < 0.6 else chance.randrange(
            min(len(data), 64) + 1
        )  # fmt: skip
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                width = chance.choice((1, 2, 4, 8))
                number = chance.choice(NUMBERS) % (1 << 8 * width)
                data[at : at + width] = number.to_bytes(width, chance.choice(("little", "big")))
            case 2:
                del data[at : at + chance.choice((1, 3, 50))]
            case 3:
                data[at:at] = data[at : at + 60]
            case 4 if words:
                data[at : at + chance.choice((0, 1, 4))] = chance.choice(words)
            case _:
                data[at:at] = chance.randbytes(chance.randrange(5))
    return bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.05 else data)


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Larger allocations fail."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


# Arrow cannot hand on a row of CSV that is no UTF-8, and says so beside the error that it raises.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", TABLE)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    parsed = TABLE[name]
    for sample in parsed.samples:
        outcome(parsed, sample)
    chance = random.Random(name)
    small = [sample for sample in parsed.samples if len(sample) < 40_000]
    for _ in range(EXAMPLES):
        outcome(parsed, bent(chance.choice(small), parsed.words, chance))


def outcome(parsed: Parsed, data: bytes) -> None:
    began = time.monotonic()
    try:
        parsed.parse(data)
    except parsed.refusals as error:
        assert str(error)
    except BaseException as error:
        error.add_note(f"of {len(data)} bytes, which begin {data[:300]!r}")
        raise
    assert time.monotonic() - began < SECONDS_EACH, data[:300]
