"""The tap and the editor: what runs, who may, and that text of others stays text."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from flumeng.control.queries import history
from flumeng.platform.errors import UnavailableError, UserError
from tests.unit.console.flow_cluster import ANN, EVE, FLOW, Cluster, text_of

HUNG_SECONDS = 60.0
BREAK_OUT = "\"'><script>alert(1)</script>{{7*7}}&lt;\u202e\x00"
EVENT = {"body": BREAK_OUT, "ts": "t", "host": BREAK_OUT, "attrs": {}, "journal": "j", "@end": "x"}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def audited(cluster: Cluster) -> list[tuple[str, str]]:
    return [(row.who, row.command) for row in history.audit(cluster.store, 10)]


def messages(stream: str) -> list[tuple[str, Any]]:
    found = []
    for block in stream.strip().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        if fields:
            found.append((fields.get("event", "message"), json.loads(fields["data"])))
    return found


def test_events_are_streamed_as_they_arrive_and_the_audit_has_the_viewer(cluster: Cluster) -> None:
    cluster.trials.events = [None, EVENT, {"@lost": "n2 does not answer"}, EVENT]
    answer = cluster.client(EVE).get("/flows/web/tap/events?at=sources&where=seq+%3E+1")
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = messages(answer.text)
    assert [kind for kind, _ in found] == ["message"] * 3 + ["end"]
    assert found[0][1]["body"] == BREAK_OUT
    assert found[1][1] == {"lost": "n2 does not answer"}
    assert "the tap has ended" in found[3][1]
    assert cluster.trials.tapped == [("web", "sources", "seq > 1")]
    assert audited(cluster)[-1] == ("eve", "flow tap web --at sources --where seq > 1")


def test_a_tap_works_without_scripts(cluster: Cluster) -> None:
    cluster.trials.events = [EVENT]
    answer = cluster.client().post("/flows/web/tap", data={"at": "filters[0].parse", "where": ""})
    assert "1 events in 5 s" in text_of(answer.text)
    assert "<script>alert" not in answer.text
    assert cluster.trials.tapped == [("web", "filters[0].parse", None)]


def test_looking_at_the_form_taps_nothing(cluster: Cluster) -> None:
    page = cluster.page("/flows/web/tap?at=branches%5Brest%5D")
    assert '<option value="branches[rest]" selected>' in page
    assert not cluster.trials.tapped
    assert "run code" in text_of(page)


def test_a_tap_that_is_refused_says_why(cluster: Cluster) -> None:
    cluster.trials.error = UserError("this node's policy file does not allow taps of the flow web")
    answer = cluster.client().post("/flows/web/tap", data={"at": "sources"})
    assert "policy file does not allow taps" in text_of(answer.text)
    (end,) = messages(cluster.client().get("/flows/web/tap/events").text)
    assert end == ("end", str(cluster.trials.error))


def test_a_page_of_another_site_starts_no_tap(cluster: Cluster) -> None:
    headers = {"sec-fetch-site": "cross-site"}
    assert cluster.client().get("/flows/web/tap/events", headers=headers).status_code == 403
    assert not cluster.trials.tapped


def test_hanging_taps_block_no_other_page(cluster: Cluster) -> None:
    thaw, hung = threading.Event(), threading.Barrier(9)

    def hang() -> None:
        hung.wait(20)
        thaw.wait(HUNG_SECONDS)

    cluster.trials.events, cluster.trials.hang = [EVENT], hang
    client = cluster.client()
    viewers = [
        threading.Thread(target=client.get, args=("/flows/web/tap/events",)) for _ in range(8)
    ]
    with client:
        for viewer in viewers:
            viewer.start()
        hung.wait(20)
        began = time.monotonic()
        try:
            for part in ("", "/partitions", "/tap"):
                assert client.get(f"/flows/web{part}").status_code == 200
            assert time.monotonic() - began < HUNG_SECONDS / 2
        finally:
            thaw.set()
        for viewer in viewers:
            viewer.join()


def test_problems_have_lines_and_a_valid_text_its_promises(cluster: Cluster) -> None:
    client = cluster.client()
    answer = client.post("/flows/web/check", data={"text": "flow: web\nsources: [taill: {}]\n"})
    assert answer.json()["problems"][-1] == {
        "line": 2,
        "path": "sources[0]",
        "message": 'unknown source "taill"; did you mean "tail"?',
    }
    assert client.post("/flows/web/check", data={"text": FLOW}).json()["problems"] == []
    assert client.post("/flows/new/check", data={"text": FLOW}).json()["promises"]
    other = client.post("/flows/web/check", data={"text": FLOW.replace("flow: web", "flow: x")})
    assert "this page edits flow web" in other.json()["problems"][0]["message"]


def test_texts_that_are_still_written_are_not_kept(cluster: Cluster) -> None:
    from flumeng.config import _read  # noqa: PLC0415  the cache itself

    before = _read.cache_info().currsize
    client = cluster.client()
    for number in range(20):
        text = FLOW.replace("index: web", f"index: w{number}")
        assert client.post("/flows/web/check", data={"text": text}).json()["problems"] == []
    assert _read.cache_info().currsize == before


def test_only_who_may_change_the_flow_edits_it(cluster: Cluster) -> None:
    client = cluster.client(EVE)
    assert client.get("/flows/web/edit").status_code == 403
    assert client.get("/flows/new").status_code == 403
    assert client.post("/flows/web/check", data={"text": FLOW}).status_code == 403
    form = {"text": FLOW, "work": "try", "events": "x"}
    assert client.post("/flows/web/edit", data=form).status_code == 403
    assert not cluster.trials.explained


def test_a_preview_shows_the_difference_and_what_moves_and_applies_nothing(
    cluster: Cluster,
) -> None:
    text = FLOW.replace("index: web", "index: web2")
    form = {"text": text.replace("\n", "\r\n"), "work": "preview", "revision_seen": "1"}
    page = cluster.client().post("/flows/web/edit", data=form).text
    assert '<span class="new">+' in page
    assert "Applying it would do this" in page
    assert "takes revision 2" in text_of(page)
    assert 'formaction="/do/flow-apply"' in page
    assert '<input type="hidden" name="flow" value="web">' in page
    assert "flumeng flow apply FILE --if-revision 1" in page
    assert audited(cluster) == [("ann", "flow apply web (revision 1)")]
    late = cluster.client().post("/flows/web/edit", data={**form, "revision_seen": "7"}).text
    assert "flow web is at revision 1, not at revision 7" in text_of(late)


def test_filters_are_tried_on_pasted_and_on_tapped_events(cluster: Cluster) -> None:
    step = {
        "step": f"parse {BREAK_OUT}", "depth": 1, "dropped": False, "lost": False,
        "rows": [{"body": BREAK_OUT}], "why": {}, "before": {"body": BREAK_OUT},
        "outcome": f"+{BREAK_OUT}",
    }  # fmt: skip
    cluster.trials.traces = [{"event": {"body": BREAK_OUT}, "steps": [step]}]
    lines = f"plain line\n\n{json.dumps(EVENT)}\n[1, 2]\n"
    form = {"text": FLOW, "work": "try", "events": lines}
    page = cluster.client().post("/flows/web/edit", data=form).text
    assert "Before and after each filter" in page
    assert "<script>alert" not in page
    ((_, events),) = cluster.trials.explained
    assert [event["body"] for event in events] == ["plain line", BREAK_OUT, "[1, 2]"]
    assert events[1]["host"] == BREAK_OUT


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"work": "try", "events": "  \n"}, "no event to try"),
        ({"work": "check", "text": "x" * 900_000}, "larger than"),
        ({"work": "preview", "text": "flow: ["}, "line 1"),
        ({"work": "oops"}, "work: expected one of"),
    ],
)
def test_bad_input_is_a_sentence(
    cluster: Cluster, fields: Mapping[str, str], sentence: str
) -> None:
    page = cluster.client().post("/flows/web/edit", data={"text": FLOW, **fields}).text
    assert sentence in text_of(page)


def test_a_trial_that_takes_too_long_keeps_what_was_written(cluster: Cluster) -> None:
    cluster.trials.error = UnavailableError("the filters took longer than 20 s")
    form = {"text": FLOW + "# mine", "work": "try", "events": "kept"}
    page = cluster.client().post("/flows/web/edit", data=form).text
    assert "the filters took longer than 20 s" in text_of(page)
    assert "# mine" in page
    assert ">\nkept</textarea>" in page


def test_text_of_others_stays_text_on_every_page() -> None:
    text = FLOW.replace("http://es:9200", "http://es:9200/<script>alert(1)</script>")
    text = text.replace("severity < 4", "body <> '</textarea><script>alert(1)</script>'")
    cluster = Cluster(text, why=f"elasticsearch: {BREAK_OUT}")
    cluster.letters.error = UserError(BREAK_OUT)
    cluster.trials.events = [EVENT]
    for part in ("", "/partitions", "/events", "/revisions", "/dead", "/tap", "/edit"):
        for query in ("", f"?q={BREAK_OUT[:-1]}&at={BREAK_OUT[:-1]}&reason={BREAK_OUT[:-1]}"):
            page = cluster.page(f"/flows/web{part}{query}")
            assert "<script>alert" not in page
            assert not re.search(r"<[^>]* on\w+=", page)
            assert "49" not in re.sub(r"<[^>]*>", "", page).split("{{7*7}}")[0][-4:]
    assert "<script>alert" not in cluster.page(f"/flows/{'%3Cscript%3Ealert(1)'}", status=404)


def test_every_form_carries_the_proof_of_the_session(cluster: Cluster) -> None:
    for path in ("/flows/web/tap", "/flows/web/edit", "/flows/new"):
        page = cluster.page(path, ANN)
        forms = re.findall(r'<form method="post".*?</form>', page, re.DOTALL)
        assert forms
        assert all('name="csrf" value="proof"' in form for form in forms)


def test_the_form_of_the_editor_leads_to_what_applies_it(cluster: Cluster) -> None:
    text = FLOW.replace("index: web", "index: web2")
    client = cluster.client()
    form = {"text": text, "work": "preview", "revision_seen": "1"}
    page = client.post("/flows/web/edit", data=form).text
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page))
    shown = client.post("/do/flow-apply", data={**hidden, "text": text, "reason": "better"})
    assert shown.status_code == 200, text_of(shown.text)
    assert "Apply a flow" in shown.text
    assert "better" in shown.text
    assert audited(cluster) == [("ann", "flow apply web (revision 1)")], "only shown so far"
