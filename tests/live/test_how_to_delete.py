"""One how-to page is followed in the default run, where it shows faults of the harness early."""

from __future__ import annotations

from pathlib import Path

from tests.live.how_to import HowTo
from tests.live.one_host import Standalone


def test_delete_a_flow(standalone_of_all: Standalone, tmp_path: Path) -> None:
    standalone = Standalone(tmp_path)
    standalone.join(standalone_of_all)
    standalone.send(100)
    with HowTo("delete-a-flow", tmp_path, {"FLUMENG_ZK": standalone.hosts}) as page:
        page.run("flumeng cursor list web")
        page.run("flumeng flow delete web --reason")
        assert standalone.rows() == 100
        standalone.join(standalone_of_all)
        page.run("flumeng flow delete web --discard", typed="y\n")
        page.rest()
