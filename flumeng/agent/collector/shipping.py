"""flumeng's own code for executors elsewhere: one archive, named after its content.

Executors need only Python and the data libraries. The archive has the package's metadata too, out
of which its version is read.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import flumeng
import zkschema
from flumeng.platform import private_directory

PACKAGES = (flumeng, zkschema)
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
        (root,) = map(Path, package.__path__)
        for file in root.rglob("*.py"):
            yield str(Path(package.__name__) / file.relative_to(root)), file.read_bytes()
    found = distribution("flumeng")
    metadata = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    yield f"flumeng-{found.version}.dist-info/METADATA", metadata.encode()
