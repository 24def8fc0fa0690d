"""librdkafka's own limit: its example ``rdkafka_performance`` as a consumer, in C.

It is built once, from the sources that the crate ``rdkafka-sys`` carries, into the cache of the
tests' servers. It takes no value out of a message, and has neither TLS nor zstd.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from pathlib import Path

from benches.kafka_side import Reading
from benches.kafka_topic import PARTITIONS, TOPIC
from tests.testkit.servers.maven import cache

CRATE = "rdkafka-sys"
VERSION = "4.10.0+2.12.1"
MANIFEST = f"""\
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[lib]
path = "empty.rs"
[dependencies]
{CRATE} = "={VERSION}"
"""
PROGRAM = "examples/rdkafka_performance.c"
SAID = re.compile(r"% (\d+) messages \(\d+ bytes\) consumed in (\d+)ms")


def build() -> Path | None:
    """The program, or None where it cannot be had: cargo, cc or make is missing, or fails."""
    place = cache() / f"{CRATE}-{VERSION}"
    program = place / "rdkafka_performance"
    if program.exists():
        return program
    if not all(map(shutil.which, ("cargo", "cc", "make"))):
        return None
    place.mkdir(parents=True, exist_ok=True)
    (place / "Cargo.toml").write_text(MANIFEST)
    (place / "empty.rs").touch()
    sources = place / "vendor" / CRATE / "librdkafka"
    options = [f"--disable-{name}" for name in ("ssl", "gssapi", "curl", "zstd")]
    libraries = ("-lm", "-lpthread", "-lz", "-ldl", "-lrt")
    made = place / "made"
    commands = (
        (place, ["cargo", "vendor", "--quiet", "vendor"]),
        (sources, ["bash", "configure", *options]),
        (sources, ["make", "-j2", "-C", "src", "librdkafka.a"]),
        (sources, ["cc", "-O2", "-Isrc", PROGRAM, "src/librdkafka.a", *libraries, "-o", str(made)]),
    )
    try:
        for directory, command in commands:
            subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError):
        return None
    return made.rename(program)


def read(program: Path, address: str) -> Reading:
    """All partitions of the topic, from their beginnings to their ends."""
    command = [str(program), "-C", "-t", TOPIC, "-b", address, "-o", "beginning", "-q", "-e"]
    for number in range(PARTITIONS):
        command += ["-p", str(number)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = SAID.findall(done.stdout + done.stderr)
    assert said, done.stderr
    events, milliseconds = map(int, said[-1])
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Reading(events, milliseconds / 1000, used)
