"""Listings of the objects of a path, on a real S3 server and behind faulty ones."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flumeng.agent.standalone.embedded import free_port
from flumeng.connectors.objects import s3
from flumeng.connectors.objects.cleanup import Cleanup
from flumeng.connectors.objects.listing import Lister, Listing
from flumeng.connectors.objects.options import ObjectsSource
from flumeng.connectors.objects.pages import Listed
from flumeng.control.snapshot.items import Item
from flumeng.platform import secrets
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.file_store import open_files
from flumeng.platform.options.locations import Credentials, located, place_of
from flumeng.platform.remote_store import revealed
from tests.live.own_server import need_own
from tests.testkit.servers.s3 import RealS3

KEYS = Credentials(access_key="${secret:lake-id}", secret_key="${secret:lake-key}")
STRANGE = ("50%.gz", "h#.gz", "ü &<>'\".gz", "p+q r.gz", "x%41.gz", "n" * 200 + ".gz")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3]:
    server = RealS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def lake(server: RealS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of its own in the bucket."""
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_ID", server.access_key)
    monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", server.secret_key)
    return located(server.location(uuid.uuid4().hex), KEYS)


def put(lake: str, *names: str) -> list[str]:
    """Put objects whose sizes are the lengths of their names."""
    place, _, query = lake.partition("?")
    client = s3.client(tuple(sorted(revealed(query, secrets.resolve).items())))
    bucket, _, directory = place.removeprefix("s3a://").partition("/")

    def put(name: str) -> None:
        client.put_object(Bucket=bucket, Key=f"{directory}/{name}", Body=b"x" * len(name))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, names))
    return sorted(names)


def under(lake: str, glob: str) -> str:
    place, _, query = lake.partition("?")
    return f"{place}/{glob}?{query}"


def names(listing: Listing, lake: str) -> list[str]:
    root = lake.partition("?")[0] + "/"
    return [one.name.removeprefix(root) for page in listing for one in page]


def found(lake: str, glob: str, after: str = "") -> list[str]:
    behind = place_of(under(lake, after)).partition("?")[0] if after else ""
    return names(Lister(under(lake, glob)).listing(behind), lake)


def test_object_is_listed_with_its_size_time_and_tag(lake: str) -> None:
    put(lake, "a/b.gz")
    ((one,),) = list(Lister(under(lake, "a/*")).listing())
    assert one.location == under(lake, "a/b.gz")
    assert "never-a-secret" not in one.location
    files, path = open_files(one.location)
    info = files.get_file_info(path)
    assert (one.size, one.modified_us) == (info.size, info.mtime_ns // 1000) == (6, one.modified_us)
    assert len(one.tag) == 32
    put(lake, "a/b.gz", "a/c.gz")
    first, other = next(iter(Lister(under(lake, "**")).listing()))
    assert first.tag == one.tag == other.tag


def test_listing_is_in_order_and_continues_after_any_name(lake: str) -> None:
    paths = put(
        lake,
        *("a.gz", "a-/1.gz", "a/1.gz", "a/2.gz", "a/b/1.gz", "a/b/c/1.gz", "b/1.gz", "b/2.log"),
        *("_temporary/1.gz", "a/_flumeng/1.gz", "c/.hidden.gz", "a/b.gz", "a!/1.gz"),
    )
    shown = [path for path in paths if "/_" not in path and path[0] != "_" and "/." not in path]
    for glob, expected in {
        "**": shown,
        "**/*.gz": [path for path in shown if path.endswith(".gz")],
        "*/*.gz": [p for p in shown if p.count("/") == 1 and p.endswith(".gz")],
        "*/b/*": ["a/b/1.gz"],
        "a/b/**/1.gz": ["a/b/1.gz", "a/b/c/1.gz"],
        "*.gz": ["a.gz"],
        "[b]/*.log": ["b/2.log"],
        "a/b.gz": ["a/b.gz"],
        "_temporary/*": ["_temporary/1.gz"],
        "none/*": [],
    }.items():
        assert found(lake, glob) == expected, glob
        for after in paths:
            assert found(lake, glob, after) == [path for path in expected if path > after], after


@pytest.mark.long
def test_many_objects_come_in_pages(lake: str) -> None:
    paths = put(lake, *(f"{n % 3}/{n:05}.gz" for n in range(2500)), *(f"m/{n}/x" for n in range(9)))
    for glob in ("*/*.gz", "**/*.gz"):
        pages = list(Lister(under(lake, glob)).listing())
        assert [len(page) for page in pages] == [1000, 1000, 500]
        assert found(lake, glob) == paths[:2500]
        assert found(lake, glob, paths[1700]) == paths[1701:2500]
    assert found(lake, "m/*/x") == paths[2500:]


def test_unusual_names_are_listed(lake: str) -> None:
    put(lake, *STRANGE, "d%r/x.gz")
    for glob, expected in (("*", STRANGE), ("**", (*STRANGE, "d%r/x.gz"))):
        listed = [one for page in Lister(under(lake, glob)).listing() for one in page]
        root = lake.partition("?")[0]
        assert [one.name.removeprefix(f"{root}/") for one in listed] == sorted(expected)
        for one in listed:
            files, path = open_files(one.location)
            assert files.get_file_info(path).size == one.size


def test_listing_errors_for_the_operator_name_the_fix(
    server: RealS3, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = under(lake.replace(server.bucket, "nobodys-bucket"), "*")
    with pytest.raises(UserError, match=r"s3a://nobodys-bucket: .*NoSuchBucket.*: create it"):
        list(Lister(elsewhere).listing())
    with pytest.raises(UserError, match="unknown parameters: colour"):
        Lister(under(lake, "*") + "&colour=red")
    if server.keeps:
        monkeypatch.setenv("FLUMENG_SECRET_LAKE_KEY", "a-wrong-one")
        with pytest.raises(UserError, match=r"SignatureDoesNotMatch.*correct the cred") as told:
            list(Lister(under(lake, "*")).listing())
        assert "a-wrong-one" not in str(told.value)


@pytest.mark.long
def test_unreachable_or_frozen_server_is_given_up(server: RealS3, lake: str) -> None:
    put(lake, "a.gz")
    down = lake.replace(server.address, f"127.0.0.1:{free_port()}")
    with pytest.raises(UnavailableError, match=r"s3a://.*Could not connect"):
        list(Lister(under(down, "*")).listing())
    need_own(server)
    server.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(UnavailableError, match="Read timeout"):
            found(lake, "*")
        assert time.monotonic() - began < 40
    finally:
        server.thaw()
    assert found(lake, "*") == ["a.gz"]


Answer = Callable[[str], tuple[int, bytes]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """A path on a server with these answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    query = f"endpoint_override=127.0.0.1:{http.server_port}&scheme=http&region=x"
    try:
        yield located(f"s3://lake/in?{query}", KEYS)
    finally:
        http.shutdown()
        http.server_close()


def contents(*keys: str, prefixes: tuple[str, ...] = ()) -> bytes:
    objects = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-23T10:00:00.000Z</LastModified>"
        f'<ETag>"e"</ETag><Size>3</Size></Contents>'
        for key in keys
    )
    below = "".join(f"<CommonPrefixes><Prefix>{p}</Prefix></CommonPrefixes>" for p in prefixes)
    all_of_it = f"<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{objects}{below}"
    return f"<ListBucketResult>{all_of_it}</ListBucketResult>".encode()


@pytest.mark.usefixtures("lake")
def test_keys_that_fit_no_location_are_counted() -> None:
    keys = ("in/", "in/a//b.gz", "in/a/../b.gz", "in/a?b.gz", "in//c.gz", "in/d.gz")
    with serving(lambda _: (200, contents("in/%252F%0A.gz", *keys))) as lake:
        listing = Lister(under(lake, "**")).listing()
        assert list(listing) == [
            [
                Listed(under(lake, "%2F\n.gz"), 3, 1_795_428_000_000_000, "e"),
                Listed(under(lake, "d.gz"), 3, 1_795_428_000_000_000, "e"),
            ]
        ]
        assert (listing.unnamed, listing.unnamed_example) == (3, "'s3://lake/in/a//b.gz'")

    def top(path: str) -> tuple[int, bytes]:
        assert "in%2F%2F" not in path
        if "in%2Fok" in path:
            return 200, contents("in/ok/d.gz")
        return 200, contents(prefixes=("in//", "in/w?/", "in/ok/"))

    with serving(top) as lake:
        listing = Lister(under(lake, "*/*.gz")).listing()
        assert names(listing, lake) == ["ok/d.gz"]
        assert listing.unnamed == 2


@pytest.mark.usefixtures("lake")
def test_refused_directory_hides_no_other() -> None:
    def answer(path: str) -> tuple[int, bytes]:
        if "prefix=in%2Fb" in path:
            return 403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        if "prefix=in%2F&" in path:
            return 200, contents(prefixes=("in/a/", "in/b/", "in/c/"))
        return 200, contents(path.partition("prefix=")[2][:4].replace("%2F", "/") + "/x.gz")

    with serving(answer) as lake:
        pages: list[Listed] = []
        with pytest.raises(UserError, match=r"AccessDenied.*allow s3:ListBucket"):
            for page in Lister(under(lake, "*/*.gz")).listing():
                pages += page
        assert len(pages) == 2


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize(("refusals", "fails"), [(2, False), (99, True)])
def test_busy_store_is_retried_a_few_times(refusals: int, fails: bool) -> None:
    asked: list[str] = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        busy = len(asked) <= refusals
        slow = b"<Error><Code>SlowDown</Code></Error>"
        return (503, slow) if busy else (200, contents("in/a.gz"))

    with serving(answer) as lake:
        if fails:
            with pytest.raises(UnavailableError, match="SlowDown"):
                found(lake, "*")
        else:
            assert found(lake, "*") == ["a.gz"]
    assert len(asked) == 3


@pytest.mark.usefixtures("lake")
def test_answer_that_is_not_s3_is_unavailable() -> None:
    with serving(lambda _: (200, b"<html>a proxy")) as lake, pytest.raises(UnavailableError):
        found(lake, "*")


def test_configured_role_is_assumed(
    server: RealS3, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server.keeps or server.given:
        pytest.skip("only moto has a service of tokens")
    put(lake, "a.gz")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    role = Credentials(role="arn:aws:iam::123456789012:role/lake")
    assert found(located(place_of(lake), role), "*") == ["a.gz"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{free_port()}")
    s3.client.cache_clear()
    with pytest.raises(UnavailableError, match="Could not connect"):
        found(located(place_of(lake), role), "*")
    s3.client.cache_clear()


def item_of(lake: str, name: str) -> Item:
    """The object's item by its present listing."""
    ((one,),) = list(Lister(under(lake, name)).listing())
    return Item(0, place_of(one.location), one.size, one.modified_us, one.tag)


def test_done_object_is_tagged_in_addition_to_its_own_tags(lake: str) -> None:
    put(lake, "a.gz", "other.gz", "anew.gz", "gone.gz", "full.gz")
    place, _, query = lake.partition("?")
    client = s3.client(tuple(sorted(revealed(query, secrets.resolve).items())))
    bucket, _, directory = place.removeprefix("s3a://").partition("/")
    found = {name: item_of(lake, f"{name}.gz") for name in ("a", "anew", "gone", "full")}

    def tags(name: str) -> dict[str, str]:
        answer = client.get_object_tagging(Bucket=bucket, Key=f"{directory}/{name}.gz")
        return {one["Key"]: one["Value"] for one in answer["TagSet"]}

    def give(name: str, given: dict[str, str]) -> None:
        tagging = {"TagSet": [{"Key": key, "Value": value} for key, value in given.items()]}
        client.put_object_tagging(Bucket=bucket, Key=f"{directory}/{name}.gz", Tagging=tagging)

    give("a", {"team": "web"})
    give("full", {str(n): "x" for n in range(10)})
    client.put_object(Bucket=bucket, Key=f"{directory}/anew.gz", Body=b"rewritten")
    client.delete_object(Bucket=bucket, Key=f"{directory}/gone.gz")
    source = ObjectsSource(paths=(place_of(under(lake, "*")),), after="tag", credentials=KEYS)
    for _ in range(2):
        assert Cleanup(source).clear([found["a"], found["anew"], found["gone"]]) == ""
        assert tags("a") == {"team": "web", "flumeng": "done"}
        assert tags("anew") == tags("other") == {}
    said = Cleanup(replace(source, tag={"state": "read"})).clear([found["full"], found["a"]])
    assert "full.gz was read, but cannot be tagged: the object would have 11 tags" in said
    assert tags("a") == {"team": "web", "flumeng": "done", "state": "read"}
    assert item_of(lake, "a.gz") == found["a"], "a tag makes no new object of it"


def test_tagging_fails_as_unavailable_while_the_server_does_not_answer(lake: str) -> None:
    put(lake, "a.gz")
    item = item_of(lake, "a.gz")
    source = ObjectsSource(paths=(place_of(under(lake, "*")),), after="tag", credentials=KEYS)
    host = item.location.partition("endpoint_override=")[2].partition("&")[0]
    away = replace(item, location=item.location.replace(host, f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(UnavailableError):
        Cleanup(source).clear([away])
