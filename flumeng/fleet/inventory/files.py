"""Reads an inventory's directory and reports all its problems at once.

::

    sites.yaml                  the sites, their groups, and the waves
    base/flows/*.yaml           the flows of all sites
    base/cluster.yaml           settings, chokes, and labels and capacities of nodes
    groups/GROUP/...            the same for a group's sites, laid over lower layers
    sites/SITE/...              the same for one site

Names that begin with a dot, and ``*.md``, are ignored; any other file is a problem. A symbolic link
has to stay within the directory. A flow's file has any name. With the first line
``# flumeng: verbatim`` the text below it is the flow, byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from flumeng.config import document
from flumeng.config.flow_files import Unfit, content_of
from flumeng.fleet.inventory import (
    Inventory,
    InventoryError,
    InventoryProblem,
    layers,
    overlays,
    sites_file,
)
from flumeng.fleet.inventory.layers import Layer, LayerFile
from flumeng.fleet.inventory.sites_file import Sites
from flumeng.platform.options.patterns import check_name
from flumeng.platform.options.problems import SpecError, nearest

SITES = "sites.yaml"
CLUSTER = "cluster.yaml"
GIT_SECONDS = 10.0


def read_inventory(directory: Path) -> Inventory:
    """Read an inventory. Raises ``InventoryError`` with the problems of all files. Flows are
    validated later, by ``rendering``."""
    tree = _Tree(directory)
    if not directory.is_dir():
        raise InventoryError([InventoryProblem(str(directory), 0, "", "is no directory")])
    top = tree.list_names("", {SITES, layers.BASE, "groups", "sites"})
    sites = _sites(tree) if SITES in top else None
    if sites is None and not tree.problems:
        tree.report(SITES, 0, "is missing: it names the inventory and its sites")
    layers_by_name: dict[str, Layer] = {}
    if layers.BASE in top:
        layers_by_name[layers.BASE] = _layer(tree, layers.BASE)
    for folder in ("groups", "sites"):
        for name in tree.list_names(folder) if folder in top else ():
            layers_by_name[f"{folder}/{name}"] = _layer(tree, f"{folder}/{name}")
            declared = sites.declared[folder] if sites else [name]
            if name not in declared:
                hint = nearest(name, declared) if declared else "there are none"
                tree.report(f"{folder}/{name}", 0, f"{SITES} has no {folder[:-1]} {name}; {hint}")
    if tree.problems or sites is None:
        raise InventoryError(tree.problems)
    return Inventory(
        name=sites.name,
        directory=directory,
        sites=sites.sites,
        waves=sites.waves,
        digest=_digest(tree.files),
        revision=revision(directory),
        layers=layers_by_name,
    )


def revision(directory: Path, seconds: float = GIT_SECONDS) -> str:
    """Return the directory's git commit, with ``+`` for uncommitted changes; empty without git."""
    head = _git(directory, seconds, "rev-parse", "--verify", "HEAD")
    changes = _git(directory, seconds, "status", "--porcelain", "--", ".") if head else None
    if not head or changes is None:
        return ""
    return head.strip() + ("+" if changes else "")


class _Tree:
    """The inventory's directory; no file outside it is read. ``files``: content by path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = Path(os.path.realpath(directory))
        self.files: dict[str, bytes] = {}
        self.problems: list[InventoryProblem] = []

    def report(self, name: str, line: int, message: str, path: str = "") -> None:
        self.problems.append(InventoryProblem(name, line, path, message))

    def list_names(self, name: str, allowed: set[str] | None = None) -> list[str]:
        """Return the sorted valid names in a directory; report others, unless they are ignored."""
        try:
            with os.scandir(self.directory / name) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.report(name, 0, f"cannot be read: {error.strerror}")
            return []
        kept = []
        for entry in listed:
            if entry.name.startswith(".") or entry.name.endswith(".md"):
                continue
            path = f"{name}/{entry.name}" if name else entry.name
            if not entry.name.isprintable():
                self.report(repr(path), 0, "has a name that cannot be printed")
            elif allowed is not None and entry.name not in allowed:
                hint = nearest(entry.name, sorted(allowed))
                self.report(path, 0, f"is no part of an inventory; {hint}")
            elif entry.is_symlink() and not self._is_within(path):
                self.report(path, 0, "links out of the directory, or to a missing file")
            else:
                kept.append(entry.name)
        return kept

    def _is_within(self, name: str) -> bool:
        try:
            target = (self.directory / name).resolve(strict=True)
        except (OSError, RuntimeError):
            return False
        return target.is_relative_to(self.root)

    def compose(self, name: str, most_bytes: int, most_nodes: int) -> tuple[str, yaml.Node] | None:
        """Return the text of a file and its YAML tree; None when there is a problem."""
        before = len(self.problems)
        try:
            content = content_of(self.directory / name, most_bytes)
            self.files[name] = content
            text = content.decode()
            root = document.compose(text, file=name, max_bytes=most_bytes, max_nodes=most_nodes)
        except OSError as error:
            self.report(name, 0, f"cannot be read: {error.strerror}")
        except Unfit as error:
            self.report(name, 0, str(error))
        except UnicodeDecodeError as error:
            self.report(name, error.object.count(b"\n", 0, error.start) + 1, "is not UTF-8")
        except SpecError as error:
            for problem in error.problems:
                message = problem.message + _quoting(text, problem.line)
                self.report(name, problem.line, message, problem.path)
        else:
            self.problems += overlays.check(root)
            return (text, root) if len(self.problems) == before else None
        return None


def _quoting(text: str, line: int) -> str:
    """Return a hint for invalid YAML, if the braces of a variable may be the cause."""
    here = text.splitlines()[line - 1 : line]
    return "; within {} and [] quote a value that has ${...}" if "${" in "".join(here) else ""


def _sites(tree: _Tree) -> Sites | None:
    composed = tree.compose(SITES, sites_file.MAX_BYTES, sites_file.MAX_NODES)
    if composed is None:
        return None
    sites = sites_file.read(composed[1])
    for problem in sites.problems:
        tree.report(SITES, problem.line, problem.message, problem.path)
    return sites


def _layer(tree: _Tree, name: str) -> Layer:
    there = tree.list_names(name, {"flows", CLUSTER})
    cluster = _file(tree, f"{name}/{CLUSTER}") if CLUSTER in there else None
    flows: dict[str, LayerFile] = {}
    for entry in tree.list_names(f"{name}/flows") if "flows" in there else ():
        path = f"{name}/flows/{entry}"
        if not entry.endswith(".yaml"):
            tree.report(path, 0, "is no part of an inventory: a flow's file ends in .yaml")
            continue
        file = _flow_file(tree, path)
        flow = file and _flow_name(tree, file)
        if not file or not flow:
            continue
        if flow in flows:
            line = document.line(document.items(file.root)["flow"])
            tree.report(path, line, f"flow {flow} is also in {flows[flow].name}", "flow")
        flows.setdefault(flow, file)
    return Layer(flows, cluster)


def _file(tree: _Tree, name: str) -> LayerFile | None:
    composed = tree.compose(name, document.MAX_BYTES, document.MAX_NODES)
    if composed is None:
        return None
    text, root = composed
    if not isinstance(root, yaml.MappingNode):
        tree.report(name, document.line(root), "expected a mapping of options")
        return None
    return LayerFile(name, text, root)


def _flow_file(tree: _Tree, name: str) -> LayerFile | None:
    file = _file(tree, name)
    text = layers.verbatim(file.text) if file else None
    return file if file is None or text is None else replace(file, text=text, is_verbatim=True)


def _flow_name(tree: _Tree, file: LayerFile) -> str | None:
    """Return the name of the flow that the file defines or patches; it may not use variables."""
    node = document.items(file.root).get("flow")
    if node is None:
        tree.report(file.name, 1, 'missing "flow": the name of the flow that it has, or patches')
        return None
    name = node.value if isinstance(node, yaml.ScalarNode) else ""
    try:
        check_name(name)
    except ValueError as error:
        message = f"{error}; found {document.describe(node)}"
        tree.report(file.name, document.line(node), message, "flow")
        return None
    return str(name)


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def _git(directory: Path, seconds: float, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "--no-optional-locks", "-C", str(directory), *words),
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
