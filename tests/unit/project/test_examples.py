"""The examples are valid and pass their cases, and their compose files start what is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cli.main import tree
from flumeng.agent.dryrun.local_spark import LocalSpark

TOP = Path(__file__).parents[3]
EXAMPLES = TOP / "examples"
FOLDERS = sorted(file.parent for file in EXAMPLES.glob("*/flow.yaml"))
CASES = sorted(EXAMPLES.glob("*/*.test.yaml"))
FLOWS = [file.with_name(file.name.replace(".test.yaml", ".yaml")) for file in CASES]
PINNED = re.compile(r"[^:\s]+(?:/[^:\s]+)*:v?(?:\d+\.\d+[\w.-]*|RELEASE\.\d{4}[\w-]+)")
FROM = re.compile(r"^FROM (\S+)", re.MULTILINE)

by_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def name(file: Path) -> str:
    return str(file.relative_to(EXAMPLES))


def compose(folder: Path) -> dict[str, dict[str, Any]]:
    """The services of an example."""
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert isinstance(services, dict)
    return services


def dockerfiles(folder: Path) -> Iterator[str]:
    """The text of each Dockerfile that an example builds."""
    for service in compose(folder).values():
        build = service.get("build", {})
        if "dockerfile_inline" in build:
            yield build["dockerfile_inline"]
        elif build:
            yield (folder / build["context"] / build["dockerfile"]).read_text()


def mounted(service: dict[str, Any]) -> dict[str, str]:
    """The mounts of a service: the path in it, and the file or volume behind it."""
    return {place: what for what, place in (v.split(":")[:2] for v in service.get("volumes", []))}


def test_index_lists_every_example() -> None:
    index = set(re.findall(r"\]\(([\w-]+)/README\.md\)", (EXAMPLES / "README.md").read_text()))
    assert index == {folder.name for folder in FOLDERS}
    assert len(FOLDERS) == 10


@pytest.mark.parametrize("flow", FLOWS, ids=name)
def test_flow_is_valid(flow: Path) -> None:
    result = CliRunner().invoke(tree, ["flow", "validate", str(flow)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("cases", CASES, ids=name)
def test_cases_pass_without_spark(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(_: LocalSpark) -> None:
        raise AssertionError("a filter needs Spark: its cases belong into tests/live")

    monkeypatch.setattr(LocalSpark, "_start", no_spark)
    monkeypatch.setenv("FLUMENG_SECRET_PSEUDONYMS", "an-example-of-a-key-for-pseudonyms")
    result = CliRunner().invoke(tree, ["flow", "test", str(cases)])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert int(result.stdout.split()[0]) >= 2


@by_folder
def test_versions_of_images_are_pinned(folder: Path) -> None:
    images = [service["image"] for service in compose(folder).values() if "image" in service]
    images += [image for text in dockerfiles(folder) for image in FROM.findall(text)]
    assert images
    assert [image for image in images if not PINNED.fullmatch(image)] == []


@by_folder
def test_files_of_compose_exist(folder: Path) -> None:
    """Flows, mounted files, volumes and the services that others wait for."""
    whole = yaml.safe_load((folder / "compose.yaml").read_text())
    services = compose(folder)
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for what in mounted(service).values():
            if what.startswith("."):
                assert (folder / what).exists(), what
            else:
                assert what in whole["volumes"], what
    words = shlex.split(services["flumeng"]["command"])
    flows = [Path(flow) for option, flow in pairwise(words) if "flow" in option]
    assert flows
    for flow in flows:
        assert mounted(services["flumeng"])[str(flow.parent)] == "."
        assert (folder / flow.name).is_file()


@by_folder
def test_secrets_servers_and_ports_of_the_flow_are_in_compose(folder: Path) -> None:
    services = compose(folder)
    flow = (folder / "flow.yaml").read_text()
    secrets = {text.upper().replace("-", "_") for text in re.findall(r"\$\{secret:([^}]+)", flow)}
    given = services["flumeng"].get("environment", {})
    assert {f"FLUMENG_SECRET_{secret}" for secret in secrets} == set(given)
    servers = set(re.findall(r"(?://(?:\w+@)?|override=|\[\")([a-z]+):\d{4}", flow)) - {"flumeng"}
    assert servers <= set(services)
    listened = set(re.findall(r'listen: "0\.0\.0\.0:(\d+)"', flow))
    published = {re.split("[:/]", port)[2] for port in services["flumeng"].get("ports", [])}
    assert listened == published


@by_folder
def test_readme_is_short(folder: Path) -> None:
    assert len((folder / "README.md").read_text().splitlines()) <= 20


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("nginx:1.27.5", True),
        ("python:3.11.13-slim-bookworm", True),
        ("docker.elastic.co/elasticsearch/elasticsearch:8.19.5", True),
        ("minio/minio:RELEASE.2025-04-22T22-12-26Z", True),
        ("nginx", False),
        ("nginx:latest", False),
        ("postgres:16", False),
        ("localhost:5000/nginx", False),
    ],
)
def test_pinned_image_is_recognised(image: str, pinned: bool) -> None:
    assert bool(PINNED.fullmatch(image)) is pinned
