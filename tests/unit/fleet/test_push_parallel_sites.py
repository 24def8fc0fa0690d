"""The same work in many sites at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from flumeng.fleet.inventory import Site
from flumeng.fleet.parallel_sites import in_sites
from flumeng.platform.errors import ConflictError, UnavailableError


def site(name: str, seconds: float = 30.0) -> Site:
    return Site(
        name, f"zk-{name}:2181/flumeng", connect_seconds=seconds / 2, turn_seconds=seconds / 2
    )


def test_each_site_has_its_result_or_its_error() -> None:
    conflict = ConflictError("somebody else was first")

    def work(one: Site) -> str:
        if one.name == "lon":
            raise conflict
        return one.zookeeper

    outcomes = in_sites([site("par"), site("lon"), site("fra")], work)
    assert list(outcomes.items()) == [
        ("par", "zk-par:2181/flumeng"),
        ("lon", conflict),
        ("fra", "zk-fra:2181/flumeng"),
    ]


def test_unexpected_error_is_raised_and_not_an_outcome_of_a_site() -> None:
    with pytest.raises(ZeroDivisionError):
        in_sites([site("fra"), site("lon")], lambda _one: 1 // 0)


@pytest.mark.slow
def test_a_frozen_site_is_given_up_after_its_own_limit() -> None:
    thawed = threading.Event()

    def work(one: Site) -> str:
        if one.name == "ice":
            thawed.wait(30)
        return "read"

    begun = time.monotonic()
    outcomes = in_sites([site("ice", seconds=0.3), site("fra")], work)
    assert 0.3 <= time.monotonic() - begun < 5
    thawed.set()
    assert outcomes["fra"] == "read"
    assert isinstance(outcomes["ice"], UnavailableError)
    assert str(outcomes["ice"]) == "no answer within 0.3 s"


@pytest.mark.slow
def test_frozen_sites_that_hold_all_threads_do_not_delay_the_others() -> None:
    thawed = threading.Event()
    read: dict[str, float] = {}
    begun = time.monotonic()

    def work(one: Site) -> None:
        if one.name.startswith("ice"):
            thawed.wait(30)
        read[one.name] = time.monotonic() - begun

    frozen = [site(f"ice{number}", seconds=4) for number in range(6)]
    in_sites([*frozen, site("fra"), site("lon")], work, at_most=3)
    thawed.set()
    assert max(read["fra"], read["lon"]) < 3


def test_number_of_sites_at_once_is_bounded() -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def work(_one: Site) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    assert len(in_sites([site(f"s{number}") for number in range(40)], work, at_most=4)) == 40
    assert most == 4


FROZEN = """
import threading
from flumeng.fleet.parallel_sites import in_sites
from flumeng.fleet.inventory import Site
ice = Site("ice", "zk:1/c", connect_seconds=0.1, turn_seconds=0.1)
print(in_sites([ice], lambda _one: threading.Event().wait()))
"""


@pytest.mark.slow
def test_a_frozen_site_does_not_keep_the_process_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROZEN], capture_output=True, text=True, timeout=30, check=True
    )
    assert "no answer within 0.2 s" in done.stdout
