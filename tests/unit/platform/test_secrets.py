"""A node's policy file says where its secrets are, and nothing that leaves a process has one."""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from flumeng.agent.collector.executor_units import Unit
from flumeng.config import policy
from flumeng.events.lazy_batch import Fused
from flumeng.platform import logs, scrubbing, secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.scrubbing import Secret, raising_no_secrets, scrub


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without known secrets so far."""
    monkeypatch.setattr(scrubbing, "_patterns", {})
    yield
    secrets.use({})


def use(places: str) -> None:
    secrets.use(policy.parse(f"secrets: {places}", "node.yaml").secrets)


def command(words: Sequence[str]) -> None:
    use(f"{{db: {{command: {json.dumps(words)}}}}}")


def refusal(kind: type[FlumengError] = UserError) -> str:
    with pytest.raises(kind) as caught:
        secrets.resolve("${secret:db}")
    return str(caught.value)


def test_a_secret_comes_from_where_the_policy_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUMENG_SECRET_DB", "elsewhere")
    monkeypatch.setenv("DB_PASSWORD", "from-env")
    file = tmp_path / "db"
    file.write_text("from-file\n")
    file.chmod(0o600)
    use("{db: {env: DB_PASSWORD}}")
    assert secrets.resolve("${secret:db}") == "from-env"
    use(f"{{db: {{file: {file}}}}}")
    assert secrets.resolve("${secret:db}") == "from-file"
    command(["/bin/echo", "from-command; $HOME"])
    assert secrets.resolve("${secret:db}") == "from-command; $HOME"
    use("{other: {env: DB_PASSWORD}}")
    assert secrets.resolve("${secret:db}") == "elsewhere"


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("{db: {}}", "secrets.db: expected one of file, env and command"),
        ("{db: {env: A, file: /b}}", "secrets.db: expected one of file, env and command"),
        ("{db: {command: [vault, read]}}", "secrets.db.command: expected a command with an abs"),
        ("{db: {file: b}}", "secrets.db.file"),
        ("{'d/b': {env: A}}", "expected the NAME of"),
    ],
)
def test_invalid_policy_file_is_refused(place: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        use(place)


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604])
def test_file_of_a_secret_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "db"
    file.write_text("from-file\n")
    file.chmod(mode)
    use(f"{{db: {{file: {file}}}}}")
    assert refusal() == f"the secret {file} is open to others: chmod 600 {file}"


def test_missing_secret_is_reported_with_its_configured_place(tmp_path: Path) -> None:
    use(f"{{db: {{file: {tmp_path}/absent}}}}")
    assert refusal() == f"there is no secret db in {tmp_path}/absent, which the policy file names"
    use("{db: {env: FLUMENG_TEST_ABSENT}}")
    assert "no secret db in the environment variable FLUMENG_TEST_ABSENT" in refusal()
    command(["/bin/true"])
    assert "no secret db in the command /bin/true" in refusal()


def test_failing_command_is_reported_without_its_output() -> None:
    """Its vault may answer the next time; a command that does not start is wrong."""
    command(["/bin/sh", "-c", "echo hunter2hunter2; echo hunter2hunter2 >&2; exit 3"])
    failed = "cannot read secret db: its command /bin/sh ended with 3"
    assert refusal(UnavailableError) == failed
    command(["/absent/vault"])
    assert refusal().endswith("does not start: No such file or directory")


@pytest.mark.slow
def test_command_is_bounded_in_time_and_output() -> None:
    began = time.monotonic()
    endless = secrets.Command(("/bin/sh", "-c", "echo half; sleep 60 & sleep 60"), seconds=0.5)
    with pytest.raises(UnavailableError, match="did not end within"):
        endless.output("db")
    assert time.monotonic() - began < 10
    command(["/bin/sh", "-c", "while :; do echo endless; done"])
    assert "is larger than 64 KiB" in refusal()


def test_command_runs_once_for_concurrent_callers(tmp_path: Path) -> None:
    command(["/bin/sh", "-c", f"echo x >> {tmp_path}/runs; echo secret"])
    assert [str(secrets.resolve("${secret:db}")) for _ in range(3)] == ["secret"] * 3
    assert (tmp_path / "runs").read_text() == "x\n"


@dataclass(frozen=True)
class Login:
    user: str
    password: Secret


def test_no_repr_shows_a_secret_and_pickling_keeps_it() -> None:
    login = Login("flumeng", Secret("hunter2hunter2"))
    assert "hunter2" not in repr(login)
    assert "hunter2" not in f"{[login]} {login!r}"
    there = pickle.loads(pickle.dumps(login))
    assert there == login
    assert isinstance(there.password, Secret)


def test_excerpt_shows_no_half_of_a_secret() -> None:
    Secret("hunter2hunter2")
    text = "the password hunter2hunter2 is wrong"
    assert [scrubbing.excerpt(text, end) for end in (13, 20)] == [
        "the password ",
        "the password *** is ",
    ]


@pytest.mark.parametrize("secret", ["hunter-2", 'pä"ss\\w<o>rd/+ &1', "tab\tand 'quote'"])
def test_secret_is_scrubbed_in_common_encodings(secret: str) -> None:
    password = Secret(secret)
    texts = [
        f"wrong password {password}",
        json.dumps({"password": password}),
        f"{str(password)!r}",
        f"https://u:{quote(password, safe='')}@host/",
        *(base64.b64encode(f"{u}:{password}".encode()).decode() for u in ("a", "ab", "abc")),
    ]
    for text in texts:
        shown = scrub(text)
        assert "***" in shown
        assert secret not in shown
        assert shown.count("***") == 1
    assert scrub(scrub(texts[0])) == "wrong password ***"


def test_a_key_of_several_lines_is_scrubbed_line_by_line() -> None:
    Secret("-----BEGIN KEY-----\nc29tZXRoaW5nIHNlY3JldA==\n-----END KEY-----\n")
    assert scrub("bad line 2: c29tZXRoaW5nIHNlY3JldA==") == "bad line 2: ***"


def test_log_lines_and_their_traces_have_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    secret = Secret("swordfish-42")
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        logs.to_stderr("collector")
        try:
            raise ValueError(f"server said {secret}")
        except ValueError:
            logging.exception("cannot log in with %s", secret)
    finally:
        root.handlers = before
    shown = capsys.readouterr().err
    assert "cannot log in with ***" in shown
    assert "ValueError: server said ***" in shown
    assert "swordfish" not in shown


@dataclass(frozen=True)
class Refused:
    """A stage whose server quotes the password in its answer."""

    password: Secret
    kind: type[Exception]

    def __call__(self, _batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from ()
        try:
            raise OSError(f"401: no user with {self.password}")
        except OSError as error:
            raise self.kind(f"the server says: {error}") from error


@pytest.mark.parametrize("kind", [UnavailableError, UserError, ValueError])
def test_error_of_a_stage_in_an_executor_has_no_secret(kind: type[Exception]) -> None:
    stage = pickle.dumps(Fused((Refused(Secret("open-sesame-1"), kind),)))
    content = Unit(0, 0, stage).run().content
    name, text, *_trace = content.decode().split("\n")
    assert b"open-sesame-1" not in content
    assert "the server says: 401: no user with ***" in text
    assert name == (kind.__name__ if issubclass(kind, FlumengError) else "FlumengError")


def test_cause_of_an_error_with_a_secret_is_removed() -> None:
    secret = Secret("open-sesame-2")

    def items() -> Iterator[int]:
        yield 1
        try:
            raise OSError(f"no user with {secret}")
        except OSError as error:
            raise UnavailableError("the server is away") from error

    found = raising_no_secrets(items())
    assert next(found) == 1
    with pytest.raises(UnavailableError, match="away") as caught:
        next(found)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_error_without_a_secret_is_unchanged() -> None:
    given = UnavailableError("away")

    def items() -> Iterator[int]:
        yield 1
        raise given

    with pytest.raises(UnavailableError) as caught:
        list(raising_no_secrets(items()))
    assert caught.value is given


def test_command_has_the_environment_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "VAULT_TOKEN", "token-of-the-node")
    command(["/bin/sh", "-c", 'echo "$VAULT_TOKEN"'])
    assert secrets.resolve("${secret:db}") == "token-of-the-node"


def test_large_secret_whose_last_character_is_cut_is_too_large(tmp_path: Path) -> None:
    """It was refused as not UTF-8."""
    file = tmp_path / "large"
    file.write_text("\u00e9" * secrets.MAX_BYTES)
    file.chmod(0o600)
    use(f"{{db: {{file: {file}}}}}")
    assert refusal() == f"the secret {file} is larger than 64 KiB"
