"""Makes a release of the git repository in the working directory: a commit and an annotated tag.

``scripts/release VERSION [--no-check]`` needs a clean tree that passes ``scripts/check``. The
fragments in ``changes/`` become the section VERSION of CHANGELOG.md. Pushes nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("version", help="such as 1.2.0")
    parser.add_argument("--no-check", action="store_true", help="do not run scripts/check")
    given = parser.parse_args()
    version, tag = given.version, f"v{given.version}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"release: {version!r} is no version: give three numbers, such as 1.2.0")
    if git("tag", "--list", tag):
        sys.exit(f"release: the tag {tag} exists already: give the next version")
    if git("status", "--porcelain"):
        sys.exit("release: the tree has changes: commit or remove them")
    fragments = [*Path("changes").glob("*.*.md")]
    described = f"\n## {version} - " in Path("CHANGELOG.md").read_text()
    if bool(fragments) == described:
        problem = f"has {version} already" if described else "would get nothing: changes/ is empty"
        sys.exit(f"release: CHANGELOG.md {problem}")
    if not given.no_check and subprocess.run(["scripts/check"], check=False).returncode:
        sys.exit("release: scripts/check fails: correct what it reports")
    if fragments:
        build = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
        subprocess.run(build, check=True, stdout=sys.stderr)
    setup = Path("setup.cfg")
    text = re.sub(r"^version = .*", f"version = {version}", setup.read_text(), count=1, flags=re.M)
    setup.write_text(text)
    if git("status", "--porcelain"):
        git("commit", "--quiet", "--all", "--message", f"release: {version}")
    git("tag", "--annotate", tag, "--message", f"flumeng {version}")
    print(f"made {tag}: git push --follow-tags publishes it")


if __name__ == "__main__":
    main()
