"""A node's policy file bounds the flows there, for any text of their authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flumeng.config import Component, policy
from flumeng.config.client_tls import ClientTls
from flumeng.config.policy import UNRESTRICTED, Policy
from flumeng.connectors.console.options import Console
from flumeng.connectors.exec.options import Exec
from flumeng.connectors.files.options import Files
from flumeng.connectors.generate.options import Generate
from flumeng.connectors.http.options import Http
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.connectors.network.options import Syslog
from flumeng.connectors.network.server_tls import Tls
from flumeng.connectors.tail.options import Tail
from flumeng.platform.errors import UserError

ROOT = Path(__file__).parents[3]


def source(options: Any) -> Component[Any]:
    return Component("source", type(options).__name__.lower(), options)


def refusal(allowed: Policy, options: Any) -> str:
    with pytest.raises(UserError) as caught:
        allowed.require(source(options))
    return str(caught.value)


def test_everything_but_commands_is_allowed_without_a_file() -> None:
    for options in (Generate(), Syslog(listen="[::]:1"), Tail(paths=("/etc/*",))):
        UNRESTRICTED.require(source(options))
    assert "does not allow the command /bin/ls -l" in refusal(
        UNRESTRICTED, Exec(command=("/bin/ls", "-l"))
    )
    assert policy.load(None) is UNRESTRICTED


def test_the_example_is_a_policy() -> None:
    allowed = policy.load(ROOT / "conf" / "node.yaml")
    allowed.require(source(Exec(command=("/usr/bin/df", "-P"))))
    assert "does not allow" in refusal(allowed, Tail(paths=("/etc/passwd",)))


def test_unlisted_source_is_refused() -> None:
    allowed = policy.parse("sources: [syslog]", "node.yaml")
    assert refusal(allowed, Generate()).endswith("does not allow the source generate")
    nothing = policy.parse("sources: []", "node.yaml")
    assert refusal(nothing, Syslog(listen="[::]:1")).endswith("does not allow the source syslog")


def test_subscribers_are_granted_flows_by_name() -> None:
    allowed = policy.parse("subscribers: {research: [web, app], audit: ['*']}", "node.yaml")
    assert allowed.granted("research") == {"web", "app"}
    assert allowed.granted("audit") == {"*"}
    assert not allowed.granted("stranger")
    assert not UNRESTRICTED.granted("research")
    for wrong in ("{research: web}", "{research: ['a b']}", "{'a b': [web]}", "[research]"):
        with pytest.raises(UserError, match="subscribers"):
            policy.parse(f"subscribers: {wrong}", "node.yaml")


def test_brokers_are_allowed_by_name() -> None:
    allowed = policy.parse("inputs: ['kafka://a:9092', 'kafka://b:9092']", "node.yaml")
    ours = KafkaSource(brokers=("a:9092", "b:9092"), topics=("t",))
    allowed.require(Component("source", "kafka", ours))
    other = Component("source", "kafka", KafkaSource(brokers=("a:9092", "c:9092"), topics=("t",)))
    with pytest.raises(UserError, match="does not allow to read kafka://c:9092"):
        allowed.require(other)
    tls = KafkaSource(brokers=("a:9092",), topics=("t",), tls=ClientTls(ca="/secret/ca.pem"))
    with pytest.raises(UserError, match=r"does not allow to read /secret/ca\.pem"):
        Policy(paths=("/etc",)).require(Component("source", "kafka", tls))


@pytest.mark.parametrize(
    ("entry", "listen", "expected"),
    [
        ("*:5514", "0.0.0.0:5514", True),
        ("*:5514", "[::]:5514", True),
        ("*:5514", "0.0.0.0:5515", False),
        ("*:5000-5999", "1.2.3.4:5999", True),
        ("*:5000-5999", "1.2.3.4:6000", False),
        ("*:5000-5999", "1.2.3.4:0", False),
        ("127.0.0.1:0-65535", "127.0.0.1:0", True),
        ("127.0.0.1:0-65535", "0.0.0.0:80", False),
        ("[::1]:1-2", "[0:0::1]:2", True),
        ("LOCALHOST:1", "localhost:1", True),
    ],
)
def test_listen_addresses_are_allowed_by_entry(entry: str, listen: str, expected: bool) -> None:
    allowed = Policy(listen=(entry,))
    if expected:
        allowed.require(source(Syslog(listen=listen)))
    else:
        assert refusal(allowed, Http(listen=listen)).endswith(f"to listen on {listen}")


@pytest.mark.parametrize(
    ("entry", "command", "expected"),
    [
        ("/bin/df -P", ("/bin/df", "-P"), True),
        ("/bin/df -P", ("/bin/df",), False),
        ("/bin/df -P", ("/bin/df", "-P", "/"), False),
        ("/bin/df *", ("/bin/df",), True),
        ("/bin/df *", ("/bin/df", "-P", "/"), True),
        ("/bin/df *", ("/bin/dff", "-P"), False),
        ("/bin/sh -c 'a b'", ("/bin/sh", "-c", "a b"), True),
        ("/bin/sh -c 'a b'", ("/bin/sh", "-c", "a", "b"), False),
    ],
)
def test_commands_are_allowed_by_entry(
    entry: str, command: tuple[str, ...], expected: bool
) -> None:
    allowed = Policy(commands=(entry,))
    if expected:
        allowed.require(source(Exec(command=command)))
    else:
        assert "does not allow the command" in refusal(allowed, Exec(command=command))


def test_policy_resolves_symlinks_before_comparing_paths(tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "based"
    for folder in (base, outside):
        folder.mkdir()
        (folder / "a.log").touch()
    (base / "leads-out").symlink_to(outside)
    (base / "leads-out.log").symlink_to(outside / "a.log")
    (tmp_path / "leads-in").symlink_to(base)
    allowed = Policy(paths=(str(base),))
    for path in ("base/*.log", "base/a.log", "base/sub/x*", "leads-in/*", "based/../base/a.log"):
        allowed.require(source(Tail(paths=(f"{tmp_path}/{path}",))))
    for path in ("*/a.log", "based/*", "base/../based/*", "base/leads-out/*"):
        assert "to read" in refusal(allowed, Tail(paths=(f"{tmp_path}/{path}",)))
    assert "leads-out.log" in refusal(allowed, Tail(paths=(f"{base}/leads-out.log",)))
    by_symlink = Policy(paths=(str(tmp_path / "leads-in"),))
    by_symlink.require(source(Tail(paths=(f"{base}/a.log",))))
    tls = Tls(certificate=f"{base}/a.log", key=f"{outside}/a.log")
    assert refusal(allowed, Syslog(listen="[::]:1", tls=tls)).endswith(f"to read {outside}/a.log")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "node.yaml: line 1: the file is empty"),
        ("source: [tail]", 'node.yaml: line 1: source: unknown option; did you mean "sources"?'),
        ("sources: [tial]", 'did you mean "tail"?'),
        ("sources: tail", "expected a list"),
        ("paths: [var]", "expected an absolute path"),
        ("listen: [5514]", "expected host:port"),
        ('listen: ["*:1-99999"]', "expected host:port"),
        ("commands: [ls]", "expected a command line with an absolute path"),
        ('commands: ["/bin/sh -c \'x"]', "expected a command line: No closing quotation"),
        ("outputs: [lake]", "expected an absolute path or a URL"),
        ("outputs: [/lake/../etc]", "expected a path without .."),
        ('outputs: ["/lake/%Y"]', "without patterns"),
        ('outputs: ["/lake/{app}"]', "without patterns"),
        ("{", "not YAML"),
    ],
)
def test_invalid_file_is_reported_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"^node\.yaml: line 1: ") as caught:
        policy.parse(text, "node.yaml")
    assert said in str(caught.value)


def test_unreadable_policy_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the policy file .*: No such file"):
        policy.load(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    ("entry", "uri", "expected"),
    [
        ("*", "/anywhere", True),
        ("*", "s3://anything/at?all=1", True),
        ("/", "/anywhere", True),
        ("/", "s3a://lake/web", False),
        ("s3a://lake", "s3a://lake/web/dt=%Y", True),
        ("s3a://lake", "s3://lake/web", True),
        ("s3a://lake", "s3a://lakes/web", False),
        ("s3a://lake/web", "s3a://lake/web", True),
        ("s3a://lake/web", "s3a://lake/website", False),
        ("s3a://lake/web", "s3a://lake/web/../other", False),
        ("s3a://lake/web", "s3a://lake//web", False),
        ("s3a://lake", "s3a://lake/web?endpoint_override=evil:9000", False),
        (
            "s3a://lake?endpoint_override=minio:9000",
            "s3://lake/a?endpoint_override=minio:9000",
            True,
        ),
        ("s3a://lake?endpoint_override=minio:9000", "s3://lake/a", False),
        ("s3a://lake", "s3a://key:secret@lake/web", False),
        ("s3a://lake", "gs://lake/web", False),
        ("hdfs://namenode:8020/logs", "hdfs://namenode:8020/logs/a", True),
        ("hdfs://namenode:8020/logs", "hdfs://other:8020/logs/a", False),
        ("hdfs://namenode:8020/logs", "/logs/a", False),
    ],
)
def test_sinks_write_below_the_given_places_only(entry: str, uri: str, expected: bool) -> None:
    allowed = policy.parse(f'outputs: ["{entry}"]', "node.yaml")
    if expected:
        allowed.require_output(uri)
        return
    with pytest.raises(UserError, match="does not allow to write to"):
        allowed.require_output(uri)


def test_output_places_are_compared_with_symlinks_resolved(tmp_path: Path) -> None:
    base, outside = tmp_path / "lake", tmp_path / "lakes"
    for folder in (base, outside):
        folder.mkdir()
    (base / "leads-out").symlink_to(outside)
    (tmp_path / "leads-in").symlink_to(base)
    allowed = Policy(outputs=(str(base),))

    def sink(path: str) -> Component[Any]:
        return Component("sink", "files", Files(path=path))

    for path in (f"{base}/dt=%Y", f"file://{base}/a", f"{tmp_path}/leads-in/a/%H"):
        allowed.require(sink(path))
    for path in (f"{outside}/a", f"{base}/leads-out/%Y", f"{base}/../lakes", "/etc/cron.d"):
        with pytest.raises(UserError, match="does not allow to write to"):
            allowed.require(sink(path))
    allowed.require(Component("sink", "console", Console()))
    with pytest.raises(UserError, match="does not allow to write to"):
        Policy(outputs=()).require(sink(f"{base}/a"))


def test_the_example_bounds_sinks() -> None:
    allowed = policy.load(ROOT / "conf" / "node.yaml")
    allowed.require_output("/var/lib/lake/web")
    with pytest.raises(UserError, match="does not allow to write to /etc"):
        allowed.require_output("/etc/cron.d")
