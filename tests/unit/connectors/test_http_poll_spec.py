"""Combinations of the options of ``http_poll``, and the permissions they need of a node."""

from __future__ import annotations

import pytest

from flumeng.config import parse_flow
from flumeng.config.policy import parse as policy
from flumeng.connectors.polls.http_options import HttpPollSource
from flumeng.connectors.polls.json_paths import check_path, check_single, parse
from flumeng.connectors.polls.options import Answers, Schedule
from flumeng.connectors.polls.templates import Template
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import SpecError

FLOW = """
flow: tickets
sources:
  - http_poll:
      url: https://API.example/v1/tickets?open=1
      schedule: {{every_seconds: 60}}
      answers: {{path: s3a://logs-polls/tickets}}
      {}
sinks: [console]
"""


def options(text: str = "") -> HttpPollSource:
    found = parse_flow(FLOW.format(text)).sources[0].options
    assert isinstance(found, HttpPollSource)
    return found


def test_all_options_together_are_a_valid_flow() -> None:
    found = options(
        """method: POST
      body: '{"since": "{last}", "until": "{due:unix}", "all": {}}'
      query: {cursor: "{cursor}", key: "${secret:api-key}", day: "{due:%Y-%m-%d}"}
      headers: {X-Key: "${secret:api-key}", Content-Type: application/json}
      auth:
        oauth2: {token_url: "https://login.example/t", client_id: a, client_secret: "${secret:c}"}
      tls: {ca: /etc/ca.pem}
      paging: {by: cursor, path: '["@odata.next"]'}
      records: data.items?
      track: {path: updated_at, type: time}
      start_from: 2026-11-22T08:00:00Z
      redirect_to: ["https://cdn.example/exports"]"""
    )
    assert found.weighed
    assert not found.local
    assert list(found.needs()) == [
        ("input", "https://api.example:443/v1/tickets"),
        ("input", "https://cdn.example:443/exports"),
        ("input", "https://login.example:443/t"),
        ("path", "/etc/ca.pem"),
        ("output", "s3a://logs-polls/tickets"),
    ]


def test_a_node_bounds_which_urls_are_polled() -> None:
    part = parse_flow(FLOW.format("")).sources[0]
    outputs = 'outputs: ["s3a://logs-polls"]'
    policy(f'inputs: ["https://api.example:443/v1"]\n{outputs}', "p").require(part)
    for inputs in ("https://api.example:443/v2", "http://api.example:80", "s3a://logs"):
        with pytest.raises(UserError, match="does not allow to read https://api"):
            policy(f'inputs: ["{inputs}"]\n{outputs}', "p").require(part)
    with pytest.raises(UserError, match="does not allow to write to s3a://logs-polls/tickets"):
        policy('outputs: ["s3a://lake"]', "p").require(part)


def test_local_answers_path_makes_the_source_local() -> None:
    here = HttpPollSource(
        url="https://a.example/",
        schedule=Schedule(every_seconds=60),
        answers=Answers(path="/data/polls"),
    )
    assert (here.local, here.local_path) == (True, "/data/polls")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("body: '{}'", "expected with method: POST"),
        ('headers: {Authorization: "Bearer x"}', "expected a reference to a secret"),
        ('headers: {Host: "x"}', "flumeng sets this header itself"),
        ("headers: {X-A: ä}", "printable ASCII"),
        ("auth: {username: a}", "username and password together"),
        ("auth: {}", "expected one of username"),
        ('auth: {bearer: "${secret:a}", username: a, password: "${secret:a}"}', "expected one of"),
        ("auth: {bearer: abc}", "not the secret itself"),
        (
            'auth: {bearer: "${secret:a}"}\n      headers: {authorization: "${secret:a}"}',
            "either this header or auth",
        ),
        ("paging: {by: cursor}", "expected path with"),
        ("paging: {by: link, path: a}", "expected path with"),
        ("paging: {by: cursor, path: 'a[*]'}", "without"),
        ("paging: {by: page}", "{page} in query or body"),
        ("paging: {by: link, size: 3}", "only with by: page"),
        ('query: {p: "{page}"}', "{page} needs paging with by: page"),
        ('query: {s: "{since}"}', "unknown variable {since}"),
        ('query: {s: "{due:%q}"}', "expected unix, unix_ms or a pattern"),
        ('query: {s: "{due:}"}', "unknown variable {due:}"),
        ('paging: {by: page}\n      query: {s: "{page:unix}"}', "{page} is not a time"),
        ("track: {path: a, type: time}\n      format: lines", "whose records have fields"),
        (
            'track: {path: a, type: time}\n      query: {s: "{last:unix}"}',
            "expected no format of a time",
        ),
        ("start_from: 2026-11-22T08:00:00Z", "expected with {last}"),
        ('start_from: "7"\n      query: {s: "{last}"}', "a time with its zone"),
        ("start_from: soon\n      track: {path: a, type: number}", "expected a number"),
        ("records: a..b", "expected a path"),
        ("records: a\n      format: lines", "only with format: json"),
        ("redirect_to: ['https://a:b@x/']", "no user and password"),
        ("timeout_seconds: 120", "at most 60"),
    ],
)
def test_options_that_exclude_each_other_are_reported(text: str, told: str) -> None:
    with pytest.raises(SpecError) as seen:
        options(text)
    assert told in str(seen.value)


def test_url_has_no_variables_and_no_secrets() -> None:
    for url in ("https://a.example/{last}", "https://a.example/?k=${secret:a}", "ftp://a/"):
        with pytest.raises(SpecError, match="expected"):
            parse_flow(FLOW.format("").replace("https://API.example/v1/tickets?open=1", url))


def test_record_paths_are_parsed_or_refused() -> None:
    steps = parse('a-b.c[0][-1][*]?["x.y"].$d?')
    assert [(step.key, step.optional) for step in steps] == [
        ("a-b", False), ("c", False), (0, False), (-1, False), (None, True),
        ("x.y", False), ("$d", True),
    ]  # fmt: skip
    assert [str(step) for step in steps[:5]] == ["a-b", "c", "[0]", "[-1]", "[*]"]
    for text in (
        "",
        ".a",
        "a.",
        "a b",
        "a[x]",
        "a[",
        "[1",
        'a["',
        "a??",
        "a.[0]",
        "x" * 300,
        "a" + "[0]" * 40,
    ):
        with pytest.raises(ValueError, match="expected"):
            check_path(text)
    with pytest.raises(ValueError, match="without"):
        check_single("a[*]")


def test_variables_in_a_filled_in_value_are_not_expanded_again() -> None:
    """A record cannot have a secret sent by containing its name."""
    template = Template("a={last}&b=${secret:x}", lambda _: "{due}")
    assert template.fill({"last": "${secret:y}{due}", "due": "no"}) == "a=${secret:y}{due}&b={due}"
    assert template.variables == {"last"}
