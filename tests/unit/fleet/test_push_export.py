"""An inventory exported from sites, which renders to their content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from flumeng.fleet.inventory import InventoryError
from flumeng.fleet.inventory.export import export
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render
from flumeng.fleet.resources import Resources

WEB = "flow: web   # of the shop\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
OTHER = WEB.replace("/a", "/b")
DEVICES = WEB.replace("web", "devices")
DELETED = "flow: web\n$patch: delete\n"
MARK = "# flumeng: verbatim\n"


def files_of(sites: Mapping[str, Resources]) -> dict[str, str]:
    """The exported files except ``sites.yaml``."""
    files = dict(export(sites, "all", {site: f"zk.{site}:2181/f" for site in sites}))
    assert files.pop("sites.yaml")
    return files


def rendered(directory: Path, files: Mapping[str, str]) -> Mapping[str, Resources]:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return render(read_inventory(directory))


def test_resources_alike_in_all_sites_are_the_base() -> None:
    held = {"flow/web": WEB, "setting/grace_seconds": "30", "choke/web@n1": "1000"}
    assert files_of({"fra": held, "lon": held}) == {
        "base/flows/web.yaml": WEB,
        "base/cluster.yaml": "settings:\n  grace_seconds: 30\nchokes:\n  web@n1: 1000\n",
    }


def test_resources_alike_in_most_sites_are_the_base_and_others_override_it() -> None:
    sites = {name: {"flow/web": WEB} for name in ("ams", "dub", "fra", "lon")}
    sites |= {"nyc": {"flow/web": OTHER}, "osl": {}}
    assert files_of(sites) == {
        "base/flows/web.yaml": WEB,
        "sites/nyc/flows/web.yaml": MARK + OTHER,
        "sites/osl/flows/web.yaml": DELETED,
    }


def test_resources_alike_in_fewer_sites_belong_to_those_sites() -> None:
    sites = {
        "fra": {"flow/web": WEB, "flow/devices": DEVICES, "setting/grace_seconds": "30"},
        "lon": {"flow/web": OTHER, "label/n1/role": "web", "capacity/n1/slots": "0.5"},
        "osl": {"flow/web": WEB, "setting/grace_seconds": "30"},
        "nyc": {"flow/web": OTHER, "setting/grace_seconds": "30"},
    }
    assert files_of(sites) == {
        "sites/fra/cluster.yaml": "settings:\n  grace_seconds: 30\n",
        "sites/fra/flows/devices.yaml": DEVICES,
        "sites/fra/flows/web.yaml": WEB,
        "sites/lon/cluster.yaml": "nodes:\n  n1:\n    capacity:\n      slots: 0.5\n"
        "    labels:\n      role: web\n",
        "sites/lon/flows/web.yaml": OTHER,
        "sites/osl/cluster.yaml": "settings:\n  grace_seconds: 30\n",
        "sites/osl/flows/web.yaml": WEB,
        "sites/nyc/cluster.yaml": "settings:\n  grace_seconds: 30\n",
        "sites/nyc/flows/web.yaml": OTHER,
    }


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("flow: web", False),
        ('flow: web\nx: "${secret:key}"\n', False),
        ('flow: web\nx: "${home}"\n', True),
        ('flow: web\nx: "\\x24{home}"\n', True),
        ('flow: web\nx: "$${home}"\n', True),
        ("flow: web\nx: {$patch: replace}\n", True),
        (MARK + "flow: web\n", True),
        ("flow: web\nx: [", False),
    ],
)
def test_text_that_would_be_rendered_differently_is_marked(text: str, marked: bool) -> None:
    file = files_of({"fra": {"flow/web": text}})["base/flows/web.yaml"]
    assert file == (MARK + text if marked else text)


def test_gitattributes_keep_line_ends_where_they_count() -> None:
    assert ".gitattributes" not in files_of({"fra": {"flow/web": WEB}})
    files = files_of({"fra": {"flow/web": WEB.replace("\n", "\r\n")}})
    assert files[".gitattributes"] == "*.yaml -text\n"


def test_exported_sites_are_in_one_wave(tmp_path: Path) -> None:
    files = export({"fra": {}, "lon": {}}, "shop", {"fra": "zk:2181/f", "lon": "zk:2181/l"})
    assert files["sites.yaml"].startswith(
        "# The content of these sites at the time of `flumeng push export`:"
    )
    assert rendered(tmp_path, files) == {"fra": {}, "lon": {}}
    inventory = read_inventory(tmp_path)
    assert inventory.name == "shop"
    assert [(wave.name, wave.sites) for wave in inventory.waves] == [("all", ("fra", "lon"))]
    assert inventory.sites["lon"].zookeeper == "zk:2181/l"


def test_marked_flow_is_kept_until_an_overlay_changes_it(tmp_path: Path) -> None:
    text = WEB.replace("[/a]", "['/a/$${x}']")
    files = dict(export({"fra": {"flow/web": text}}, "shop", {"fra": "zk:2181/f"}))
    assert files["base/flows/web.yaml"] == MARK + text
    assert rendered(tmp_path, files)["fra"] == {"flow/web": text}
    files["sites/fra/flows/web.yaml"] = "flow: web\ndurability: memory\n"
    assert "['/a/${x}']" in rendered(tmp_path, files)["fra"]["flow/web"]


def test_mark_is_recognised_with_either_line_end_and_keeps_line_numbers(tmp_path: Path) -> None:
    files = dict(export({"fra": {"flow/web": WEB}}, "shop", {"fra": "zk:2181/f"}))
    files["base/flows/web.yaml"] = (MARK + WEB).replace("\n", "\r\n")
    assert rendered(tmp_path, files)["fra"] == {"flow/web": WEB.replace("\n", "\r\n")}
    files["base/flows/web.yaml"] = MARK + WEB.replace("noop", "nope")
    with pytest.raises(InventoryError, match=r"^base/flows/web.yaml:4: sinks\[0\]: "):
        rendered(tmp_path, files)
