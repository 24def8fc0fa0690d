"""Signed revisions: a node runs only revisions that were applied with a certain key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flumeng.config import policy
from flumeng.control.commands.flows import apply_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.zookeeper import ANY
from flumeng.platform.errors import UserError
from flumeng.platform.security.signing import KEY, is_signed, make_key, signature
from tests.unit.agent.node_bench import TEXT, Bench, task
from zkschema import paths
from zkschema.records import Revision


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "node")


@pytest.fixture
def signer(tmp_path: Path) -> str:
    return make_key(tmp_path / "signing.key")


def current(bench: Bench, flow: str, number: int = 1) -> Revision:
    found = bench.store.read(paths.revision(flow, str(number)))
    assert found is not None
    return found.value


def test_signature_is_valid_for_one_text_of_one_flow(
    tmp_path: Path, signer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_key(tmp_path / "other.key")
    monkeypatch.setenv(KEY, str(tmp_path / "signing.key"))
    made = signature("web", "text")
    assert is_signed("web", "text", made, [other, signer])
    assert not is_signed("web", "text", made, [other])
    assert not is_signed("app", "text", made, [signer])
    assert not is_signed("web", "text ", made, [signer])
    for odd in ("", "x", made[:-4], "A" * 88):
        assert not is_signed("web", "text", odd, [signer])


def test_node_with_signers_runs_signed_revisions_only(
    bench: Bench, tmp_path: Path, signer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.require_signed_by(signer)
    bench.apply("plain")
    monkeypatch.setenv(KEY, str(tmp_path / "signing.key"))
    bench.apply("signed", "forged")
    forged = replace(current(bench, "forged"), text=TEXT.format("forged") + "  # more")
    bench.store.write(paths.revision("forged", "1"), forged, ANY)
    swapped = replace(current(bench, "signed"), text=TEXT.format("swapped"))
    bench.apply("swapped")
    bench.store.write(paths.revision("swapped", "1"), swapped, ANY)
    bench.assign(*map(task, ("plain", "signed", "forged", "swapped")))
    bench.turns()
    states = {"plain": "failed", "signed": "running", "forged": "failed", "swapped": "failed"}
    assert bench.states() == states
    assert KEY in (bench.status.tasks["plain/ingest.n1"].error or "")
    assert all(TEXT.format("plain") not in str(message) for message in bench.told)


def test_an_unsigned_revision_does_not_take_the_place_of_a_signed_one(
    bench: Bench, tmp_path: Path, signer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, str(tmp_path / "signing.key"))
    bench.require_signed_by(signer)
    bench.apply("web")
    bench.assign(task("web"))
    bench.turns()
    assert bench.states() == {"web": "running"}
    monkeypatch.delenv(KEY)
    text = TEXT.format("web").replace(":0", ":1")
    apply_flow(Operator(bench.store, "a", "", 0.0), text)
    bench.assign(task("web", revision=2))
    bench.turns()
    assert all(text not in str(message) for message in bench.told)
    assert "is not signed" in (bench.status.tasks["web/ingest.n1"].error or "")


def test_apply_signs_an_unchanged_text_once(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.apply("web")
    assert current(bench, "web").signature is None
    signer = make_key(tmp_path / "signing.key")
    monkeypatch.setenv(KEY, str(tmp_path / "signing.key"))
    bench.apply("web")
    again = current(bench, "web", 2)
    assert is_signed("web", again.effective, again.signature or "", [signer])
    bench.apply("web")
    assert bench.store.read(paths.revision("web", "3")) is None
    monkeypatch.delenv(KEY)
    bench.apply("web")
    assert bench.store.read(paths.revision("web", "3")) is None


def test_unusable_key_is_reported(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, str(tmp_path / "gone"))
    with pytest.raises(UserError, match="cannot read"):
        bench.apply("web")
    (tmp_path / "gone").write_text("no key")
    with pytest.raises(UserError, match="has no signing key"):
        bench.apply("web")
    with pytest.raises(UserError, match="cannot write"):
        make_key(tmp_path / "gone")
    with pytest.raises(UserError, match="expected a public key"):
        policy.parse("signers: [abc]", "node.yaml")
