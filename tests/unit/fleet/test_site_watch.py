"""The sites of an inventory, asked in the background.

Protects that a site that does not answer is told, delays no other one, and piles up no threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flumeng.control.zookeeper import Store
from flumeng.fleet import site_watch
from flumeng.fleet.inventory import Site
from flumeng.fleet.site_watch import SiteWatch
from flumeng.platform.errors import UnavailableError
from tests.testkit.cluster import add_node, new_cluster
from tests.testkit.waiting import wait_for

SITES = """inventory: fake
sites:
  east: {zookeeper: "east:2181/f", connect: 0.2 s, turn: 1 s}
  west: {zookeeper: "west:2181/f", connect: 0.2 s, turn: 1 s}
"""


class World:
    """Sites by name. Those in ``frozen`` answer after ``thaw``; those in ``down`` refuse."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "sites.yaml").write_text(SITES)
        self.frozen: set[str] = set()
        self.down: set[str] = set()
        self.thaw = threading.Event()
        self.connections = 0
        self.now = 1000.0
        self.watch = SiteWatch(
            directory, self.connect, lambda: self.now, accounts=self.silent, counts=self.silent
        )

    def connect(self, site: Site) -> Store:
        self.connections += 1
        if site.name in self.frozen:
            self.thaw.wait(30)
        if site.name in self.down:
            raise UnavailableError(f"{site.zookeeper} refuses")
        store = new_cluster()
        add_node(store, f"{site.name}-n1")
        return store

    def silent(self, address: str) -> Any:
        raise UnavailableError(address)

    def row(self, name: str) -> Any:
        return next(row for row in self.watch.rows() if row["site"] == name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.thaw.set()


def test_each_site_has_its_health(world: World) -> None:
    world.watch.ask()
    assert world.row("east")["health"] == "degraded"
    assert "no master is live: nothing is planned or moved" in world.row("east")["causes"]
    assert world.row("west")["asked"] == 1000.0
    assert world.watch.problem == ""


def test_site_that_refuses_is_told_and_keeps_its_last_answer(world: World) -> None:
    world.watch.ask()
    world.down.add("west")
    world.now = 2000.0
    world.watch.ask()
    assert world.row("west")["error"] == "west:2181/f refuses"
    assert world.row("west")["asked"] == 1000.0
    assert world.row("east")["asked"] == 2000.0
    world.down.clear()
    world.watch.ask()
    assert world.row("west")["error"] == ""


def test_site_that_never_answered_is_told(world: World) -> None:
    world.down.add("west")
    world.watch.ask()
    assert world.row("west")["error"] == "west:2181/f refuses"
    assert world.row("west")["asked"] is None


def test_frozen_site_delays_no_other_and_is_asked_once(world: World) -> None:
    world.frozen.add("west")
    asking = threading.Thread(target=world.watch.ask)
    asking.start()
    wait_for(lambda: world.watch.rows() and world.row("east")["asked"] == 1000.0)
    asking.join()
    assert "no answer within 1.2 s" in world.row("west")["error"]
    threads = threading.active_count()
    for _ in range(3):
        world.watch.ask()
    assert threading.active_count() <= threads
    assert world.row("east")["asked"] == 1000.0
    assert world.connections == 1 + 1 + 3
    world.frozen.clear()
    world.thaw.set()
    wait_for(lambda: world.row("west")["error"] == "")


def test_wrong_inventory_is_told_and_rows_stay(world: World) -> None:
    world.watch.ask()
    (world.directory / "sites.yaml").write_text("sites: [")
    world.watch.ask()
    assert world.watch.problem
    assert world.row("east")["asked"] == 1000.0
    (world.directory / "sites.yaml").write_text(SITES.replace("  west", "  north"))
    world.watch.ask()
    assert world.watch.problem == ""
    assert [row["site"] for row in world.watch.rows()] == ["east", "north"]


def test_sites_are_asked_in_the_background(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_watch, "SECONDS", 0.01)
    began = time.monotonic()
    world.watch.start()
    assert time.monotonic() - began < 1.0
    wait_for(lambda: world.connections > 4)
    world.watch.stop()
