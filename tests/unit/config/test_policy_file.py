"""The policy file is read again; one that cannot be used changes nothing, and is a problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.config import policy
from flumeng.config.policy import Policy, Subscriber
from flumeng.config.policy_file import NAME, REREAD_SECONDS, PolicyFile
from flumeng.platform.errors import UserError
from tests.testkit.clock import Clock


def test_both_forms_of_a_subscriber_are_read() -> None:
    text = "subscribers: {lon: [web], nyc: {flows: [web, app], bytes_per_second: 50MB, streams: 8}}"
    allowed = policy.parse(text, "node.yaml")
    assert allowed.subscriber("lon") == Subscriber(("web",))
    assert allowed.subscriber("nyc") == Subscriber(("web", "app"), 50_000_000, 8)
    assert allowed.granted("nyc") == {"web", "app"}
    assert allowed.subscriber("ber") == Subscriber(())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{bytes_per_second: 50MB}", 'subscribers.nyc: missing "flows"'),
        ("{flows: [web], bytes_per_second: 1}", "expected at least 65536 bytes"),
        ("{flows: [web], streams: 0}", "expected at least 1"),
        ("{flows: [web], rate: 1}", "unknown option"),
        ("{flows: ['a b']}", "expected the name of a flow"),
        ("web", "expected a list"),
    ],
)
def test_invalid_limits_are_named(given: str, words: str) -> None:
    with pytest.raises(UserError, match="subscribers") as refused:
        policy.parse(f"subscribers: {{nyc: {given}}}", "node.yaml")
    assert words in str(refused.value)


def test_file_is_followed_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "node.yaml", Clock()
    path.write_text("subscribers: {nyc: [web]}")
    file = PolicyFile(path, policy.load(path), clock)
    path.write_text("subscribers: {nyc: [app]}")
    assert file.granted("nyc") == {"web"}, "it is read every few seconds only"
    clock.now += REREAD_SECONDS
    assert file.granted("nyc") == {"app"}
    assert file.problems() == {}
    for wrong in ("subscribers: {nyc: [web], nyc: [app]}", "subscribers: ["):
        path.write_text(wrong)
        clock.now += REREAD_SECONDS
        assert file.granted("nyc") == {"app"}
        assert file.problems()[NAME].startswith(str(path))
        assert file.problems()[NAME].endswith("the policy read before stays in force")
    path.unlink()
    clock.now += REREAD_SECONDS
    assert file.granted("nyc") == {"app"}
    assert "No such file" in file.problems()[NAME]
    path.write_text("subscribers: {}")
    clock.now += REREAD_SECONDS
    assert file.problems() == {}
    assert file.granted("nyc") == frozenset()


def test_policy_without_a_file_stays() -> None:
    clock = Clock()
    file = PolicyFile(None, Policy(subscribers={"nyc": ("web",)}), clock)
    clock.now += REREAD_SECONDS
    assert file.granted("nyc") == {"web"}
    assert file.problems() == {}
