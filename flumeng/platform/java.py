"""Finds a Java for Spark and the ZooKeeper server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from flumeng.platform.errors import UserError

JAVA_AT_LEAST = 17
VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""Environment variables with options of the JVM; of contrary options the last one counts."""


def find_java() -> str:
    """Return the path of a new enough Java. Raises UserError with the command to install one."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    how = f"install Java {JAVA_AT_LEAST} or newer (Debian: apt-get install openjdk-17-jre-headless)"
    if home:
        how = f"correct or unset JAVA_HOME, or {how}"
    if java is None:
        raise UserError(f"no java found{f' in JAVA_HOME, {home}' if home else ''}: {how}")
    version = java_version(java)
    if version is None or version < JAVA_AT_LEAST:
        raise UserError(f"{java} is Java {version or 'unknown'}: {how}")
    return java


def java_version(java: str) -> int | None:
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', shown.stderr + shown.stdout)
    return int(match[1]) if match else None
