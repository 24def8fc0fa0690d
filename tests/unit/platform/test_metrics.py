"""Metrics: names, labels and pages; queries of children; the endpoint over HTTP."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flumeng.platform.metrics import table
from flumeng.platform.metrics.channel import Channel
from flumeng.platform.metrics.endpoint import CONNECTIONS, Endpoint
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.histogram import Histogram
from flumeng.platform.metrics.instruments import HEALTH, METRICS, Instruments
from flumeng.platform.metrics.page import MOST_FLOWS, OTHER_FLOWS, FlowLabels, Page, merged
from flumeng.platform.metrics.table import Metric, Reading
from flumeng.platform.options.patterns import check_name
from tests.testkit.clock import Clock
from tests.testkit.daemons import freeze
from tests.testkit.waiting import wait_for

UNITS = ("seconds", "bytes", "info", "events")
TAKEN = Metric("flumeng_test_taken_total", "counter", "test", "Taken.", ("flow",))
HELD = Metric("flumeng_test_held_bytes", "gauge", "test", "Held.", ("flow",))
AGE = Metric("flumeng_test_age_seconds", "gauge", "test", "Age.", ("flow",), largest=True)
HOLD = Metric("flumeng_test_hold_total", "counter", "test", "Hold.", ("flow",), largest=True)
BUSY = "too many requests are waiting: ask again in some seconds\n"
LATE = Metric("flumeng_test_late_seconds", "histogram", "test", "Late.", ("flow",))
TOOK = Metric("flumeng_test_took_seconds", "histogram", "test", "Took.")


def samples(page: bytes) -> dict[tuple[str, ...], float]:
    """(name, process, other labels) -> value, of a page that Prometheus' own parser reads."""
    return {
        (sample.name, sample.labels.pop("process"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("metric", table.METRICS, ids=lambda metric: metric.name)
def test_every_metric_keeps_to_the_conventions(metric: Metric) -> None:
    assert re.fullmatch("(flumeng|process)(_[a-z0-9]+)+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.kind != "histogram" or metric.name.endswith(UNITS)
    assert metric.doc.endswith(".")
    assert "|" not in metric.doc
    assert set(metric.labels) <= table.LABELS.keys()


def test_no_name_is_used_twice() -> None:
    names = [metric.name for metric in table.METRICS]
    assert len(names) == len(set(names))


def test_no_flow_can_have_the_label_of_all_others() -> None:
    with pytest.raises(ValueError, match=r".+"):
        check_name(OTHER_FLOWS)


def test_a_thousand_flows_are_a_bounded_number_of_series() -> None:
    page = Page("ingest.0")
    page.add(lambda: (TAKEN.of(n, f"f{n:04}") for n in range(1000)))
    page.add(lambda: (HELD.of(1, f"f{n:04}") for n in range(1000)))
    page.add(lambda: (AGE.of(n, f"f{n:04}") for n in range(1000)))
    found = samples(page.text())
    for metric in (TAKEN, HELD, AGE):
        assert len([key for key in found if key[0] == metric.name]) == 201
    assert found["flumeng_test_taken_total", "ingest.0", OTHER_FLOWS] == sum(range(200, 1000))
    assert found["flumeng_test_held_bytes", "ingest.0", OTHER_FLOWS] == 800
    assert found["flumeng_test_age_seconds", "ingest.0", OTHER_FLOWS] == 999


def test_total_of_flows_without_a_label_never_falls() -> None:
    labels = FlowLabels(most=1)

    def taken(**flows: float) -> dict[str, object]:
        merge = labels.merge(Reading(TAKEN, value, (flow,)) for flow, value in flows.items())
        return {labels[0]: value for _, labels, value in merge}

    assert taken(a=5, b=10, c=20) == {"a": 5, OTHER_FLOWS: 30}
    assert taken(a=6, b=11) == {"a": 6, OTHER_FLOWS: 31}, "c is gone, what it counted is not"
    assert taken(a=6, b=2) == {"a": 6, OTHER_FLOWS: 33}, "b began again"
    assert taken(b=3) == {"b": 3}, "a label is free"
    assert taken(b=4, d=7) == {"b": 4, OTHER_FLOWS: 40}


def test_failed_readings_do_not_add_to_the_total_of_flows_without_a_label() -> None:
    page = Page("p")
    late = Histogram((1.0,))
    late.add(0.5)
    broken = False

    def readings() -> Iterator[Reading]:
        for number in range(MOST_FLOWS + 1):
            yield TAKEN.of(5, f"flow-{number:03}")
            yield LATE.of(late, f"flow-{number:03}")
        if broken:
            raise OSError("no disk")

    def of_flows() -> dict[tuple[str, ...], float]:
        found = samples(page.text())
        return {key: value for key, value in found.items() if key[0].startswith("flumeng_test")}

    page.add(lambda: [TAKEN.of(1, "z")])
    page.add(readings)
    before = of_flows()
    broken = True
    of_flows()
    broken = False
    assert of_flows() == before
    assert before["flumeng_test_taken_total", "p", OTHER_FLOWS] == 6


def test_histograms_of_unlabelled_flows_are_summed_and_never_decrease() -> None:
    labels = FlowLabels(most=1)

    def took(**flows: Histogram) -> dict[str, object]:
        merge = labels.merge(Reading(LATE, value, (flow,)) for flow, value in flows.items())
        return {
            labels[0]: value.counts for _, labels, value in merge if isinstance(value, Histogram)
        }

    a, b, c = (Histogram((1.0,)) for _ in range(3))
    b.add(0.5, times=2)
    c.add(3.0)
    assert took(a=a, b=b, c=c) == {"a": ((0, 0), 0.0), OTHER_FLOWS: ((2, 1), 4.0)}
    b.add(2.0)
    assert took(a=a, b=b)[OTHER_FLOWS] == ((2, 2), 6.0), "c is gone, what it counted is not"
    began_anew = Histogram((1.0,))
    began_anew.add(0.25)
    assert took(a=a, b=began_anew)[OTHER_FLOWS] == ((3, 2), 6.25)


def test_held_seconds_of_flows_without_a_label_are_not_added_up() -> None:
    """Three flows that are held for ten seconds are not held for thirty."""
    labels = FlowLabels(most=0)

    def held(**flows: float) -> list[object]:
        merge = labels.merge(Reading(HOLD, value, (flow,)) for flow, value in flows.items())
        return [value for _, _, value in merge]

    assert held(a=0, b=0, c=0) == [0]
    assert held(a=10, b=10, c=4) == [10]
    assert held(a=10, b=12) == [12]
    assert held(a=11, b=12) == [13], "it never falls, and grows when any of them does"


def test_readings_with_the_same_labels_are_one_sample() -> None:
    page = Page("p")
    page.add(lambda: [HELD.of(2, "f"), HELD.of(3, "f"), AGE.of(2, "f"), AGE.of(1, "f")])
    found = samples(page.text())
    assert found["flumeng_test_held_bytes", "p", "f"] == 5
    assert found["flumeng_test_age_seconds", "p", "f"] == 2


def test_a_histogram_is_cumulative() -> None:
    took = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        took.add(seconds)
    page = Page("p")
    page.add(lambda: [TOOK.of(took)])
    found = samples(page.text())
    buckets = {
        key[2]: value for key, value in found.items() if key[0].endswith("took_seconds_bucket")
    }
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert found["flumeng_test_took_seconds_count", "p"] == 4
    assert found["flumeng_test_took_seconds_sum", "p"] == pytest.approx(7.65)


def test_failing_readings_cost_only_themselves(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Iterator[Reading]:
        raise RuntimeError("dictionary changed size")

    page = Page("p")
    page.add(broken)
    page.add(lambda: [HELD.of(1, "f")])
    for _ in range(3):
        assert samples(page.text())["flumeng_test_held_bytes", "p", "f"] == 1
    assert len(caplog.records) == 1


def test_metric_pages_of_processes_are_merged() -> None:
    """Also with a label that looks like the beginning of a block."""
    pages = []
    for process in ("ingest.0", "ingest.1"):
        page = Page(process)
        page.add(lambda: [TAKEN.of(1, "# HELP flumeng\n# HELP x")])
        pages.append(page.text())
    together = merged(pages)
    assert together.count(b"# HELP flumeng_test_taken_total") == 1
    found = samples(together)
    for process in ("ingest.0", "ingest.1"):
        assert found["flumeng_test_taken_total", process, "# HELP flumeng\n# HELP x"] == 1
        assert found["process_threads", process] >= 1
        assert found["process_resident_memory_bytes", process] > 1 << 20


def test_loop_that_does_not_turn_is_reported_stuck() -> None:
    clock = Clock(0.0)
    health = Health(10, clock)
    health.needs(lambda: "ZooKeeper is not connected" if clock.now > 5 else None)
    assert (health.stuck, health.unready) == (None, [])
    clock.now = 10
    assert (health.stuck, health.unready) == (None, ["ZooKeeper is not connected"])
    clock.now = 11
    assert health.stuck == "the main loop has not turned for 11 s"
    assert health.unready == [health.stuck, "ZooKeeper is not connected"]
    health.turned(next_within_seconds=60)
    clock.now = 80
    assert health.stuck is None


CHILD = """
import sys
from flumeng.platform.metrics.health import Health
from flumeng.platform.metrics.instruments import Instruments
health = Health(60)
health.needs(lambda: "no " + sys.argv[2])
Instruments("child", health, lambda: ()).serve_parent(int(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[str], Channel]]:
    """A process of its own that serves its metrics to this one."""
    channel = Channel("child")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(channel.descriptor), "Spark"],
        pass_fds=[channel.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    channel.child_started()
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process, channel
    process.kill()
    process.communicate()


def instruments(channel: Channel, ask_seconds: float = 20.0) -> Instruments:
    return Instruments("node", Health(60), lambda: (), lambda: {"child": channel}, ask_seconds)


@pytest.mark.slow
def test_frozen_child_is_left_out_in_time_and_included_again_when_it_thaws(
    child: tuple[subprocess.Popen[str], Channel],
) -> None:
    process, channel = child
    told = instruments(channel)
    assert samples(told.metrics())["flumeng_child_up", "node", "child"] == 1
    assert ("process_threads", "child") in samples(told.metrics())
    assert told.unready() == ["child: no Spark"]
    freeze(process.pid)
    hasty = instruments(channel, ask_seconds=0.2)
    for _ in range(3):
        began = time.monotonic()
        found = samples(hasty.metrics())
        assert time.monotonic() - began < 10
        assert found["flumeng_child_up", "node", "child"] == 0
        assert ("process_threads", "child") not in found
        assert ("process_threads", "node") in found
    assert hasty.unready() == ["child: it does not answer"]
    process.send_signal(signal.SIGCONT)
    assert samples(told.metrics())["flumeng_child_up", "node", "child"] == 1
    assert told.unready() == ["child: no Spark"]


def test_metrics_do_not_wait_for_a_dead_child(child: tuple[subprocess.Popen[str], Channel]) -> None:
    process, channel = child
    process.kill()
    process.wait()
    told = instruments(channel)
    told.metrics()
    began = time.monotonic()
    assert samples(told.metrics())["flumeng_child_up", "node", "child"] == 0
    assert time.monotonic() - began < 10, "it waited for what cannot come"


def test_frozen_child_is_not_queried_again_and_again() -> None:
    """A thousand scrapes of a child that does not read fill no buffer, and block no other."""
    channel = Channel("child")
    try:
        for _ in range(1000):
            channel.ask(METRICS)
            assert channel.answer(METRICS, 0.0) is None
        with socket.socket(fileno=os.dup(channel.descriptor)) as theirs:
            assert len(theirs.recv(1 << 16)) == 4 + len(METRICS)
    finally:
        channel.child_started()


def test_late_answer_to_another_question_is_ignored() -> None:
    channel = Channel("child")
    try:
        channel.ask(METRICS)
        channel.ask(HEALTH)
        with socket.socket(fileno=os.dup(channel.descriptor)) as theirs:
            theirs.sendall(b"\0\0\0\4page")
        assert channel.answer(HEALTH, time.monotonic() + 5) is None
    finally:
        channel.child_started()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_endpoint_serves_metrics_and_health() -> None:
    clock = Clock(0.0)
    health = Health(10, clock)
    health.needs(lambda: "ZooKeeper is not connected" if clock.now else None)
    endpoint = Endpoint("127.0.0.1:0", Instruments("p", health, lambda: [HELD.of(7, "f")]))
    base = endpoint.url.removesuffix("/metrics")
    try:
        status, page = get(endpoint.url)
        assert status == 200
        assert samples(page.encode())["flumeng_test_held_bytes", "p", "f"] == 7
        assert samples(page.encode())["flumeng_ready", "p"] == 1
        assert get(f"{base}/healthz") == (200, "ok\n")
        assert get(f"{base}/readyz") == (200, "ok\n")
        assert get(f"{base}/")[0] == 404
        clock.now = 5
        assert get(f"{base}/healthz") == (200, "ok\n")
        assert get(f"{base}/readyz") == (503, "ZooKeeper is not connected\n")
        clock.now = 20
        assert get(f"{base}/healthz")[0] == 503
    finally:
        endpoint.close()


@pytest.mark.slow
def test_silent_clients_keep_no_other_out() -> None:
    endpoint = Endpoint("127.0.0.1:0", Instruments("p", Health(60), lambda: ()))
    host, _, port = endpoint.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(5 * CONNECTIONS)]
    try:
        assert get(endpoint.url)[0] == 200
        ended = [connection for connection in silent if _has_ended(connection)]
        assert len(ended) >= len(silent) - CONNECTIONS
    finally:
        for connection in silent:
            connection.close()
        endpoint.close()


@pytest.mark.slow
def test_hanging_child_costs_a_bounded_number_of_threads() -> None:
    """However many scrape; and each health check is answered at once."""
    channel = Channel("hung")
    instruments = Instruments("p", Health(60), lambda: (), lambda: {"hung": channel}, 60.0)
    endpoint = Endpoint("127.0.0.1:0", instruments)
    host, _, port = endpoint.address.rpartition(":")
    before = threading.active_count()
    clients = []
    try:
        for _ in range(20 * CONNECTIONS):
            clients.append(socket.create_connection((host, int(port))))
            clients[-1].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            time.sleep(0.01)
        assert threading.active_count() <= before + 2 * CONNECTIONS
        assert get(endpoint.url) == (503, BUSY)
        assert get(endpoint.url.replace("metrics", "readyz")) == (503, BUSY)
        began = time.monotonic()
        assert get(endpoint.url.replace("metrics", "healthz")) == (200, "ok\n")
        assert time.monotonic() < began + 0.5
        channel.child_started()  # its end is closed now as if it had ended
        wait_for(lambda: threading.active_count() <= before, threading.active_count)
        assert get(endpoint.url)[0] == 200
    finally:
        for client in clients:
            client.close()
        endpoint.close()


def _has_ended(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.slow
def test_process_without_metrics_does_not_import_the_library() -> None:
    """``prometheus_client`` and the HTTP server are for processes that serve metrics."""
    daemons = (
        "flumeng.control.master.daemon",
        "flumeng.agent.node.daemon",
        "flumeng.agent.ingest.process",
    )
    code = f"import sys, {', '.join(daemons)}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
