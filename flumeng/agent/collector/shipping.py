"""The code of flumeng and of installed plug-ins for executors elsewhere: one archive, named after
its content.

Executors need only Python and the data libraries; what a plug-in needs beside flumeng has to be
installed there. The archive has the metadata of each distribution, out of which its version and its
components are read.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from flumeng.config import registry
from flumeng.platform import private_directory

PACKAGES = ("flumeng", "zkschema")
EPOCH = (1980, 1, 1, 0, 0, 0)


def archive(directory: Path) -> Path:
    """The archive in ``directory``, made if it is not there."""
    content = dict(sorted(_files()))
    digest = hashlib.sha256()
    for name, data in content.items():
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    file = directory / f"flumeng-{digest.hexdigest()[:16]}.zip"
    if not file.exists():
        private_directory.write_private(file, "")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, data in content.items():
                zipped.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return file


def _files() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        yield from _sources(package)
    yield from _metadata("flumeng")
    for name in sorted({entry.distribution for entry in registry.all_entries()} - {registry.OWN}):
        yield from _metadata(name)
        for module in _modules(name):
            yield from _sources(module)


def _metadata(name: str) -> Iterator[tuple[str, bytes]]:
    found = distribution(name)
    folder = f"{name.replace('-', '_')}-{found.version}.dist-info"
    metadata = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    yield f"{folder}/METADATA", metadata.encode()
    if name != registry.OWN and (points := found.read_text("entry_points.txt")):
        yield f"{folder}/entry_points.txt", points.encode()


def _modules(name: str) -> set[str]:
    """The top-level modules that have the components of this distribution."""
    mine = (entry for entry in registry.all_entries() if entry.distribution == name)
    return {entry.options.partition(":")[0].partition(".")[0] for entry in mine}


def _sources(module: str) -> Iterator[tuple[str, bytes]]:
    """The files of a top-level module or package; none when it is not there."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        yield origin.name, origin.read_bytes()
        return
    for file in origin.parent.rglob("*.py"):
        yield str(Path(module) / file.relative_to(origin.parent)), file.read_bytes()
