"""``scripts/release.py`` in a git repository of the test's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
HEAD = "# Changelog\n\n## Unreleased\n\nFragments are in `changes/`.\n\n<!-- releases -->\n"


class Repository:
    """A committed tree of what a release reads and writes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder.parent / "gitconfig"))
        (folder.parent / "gitconfig").write_text("[user]\nname = t\nemail = t@example.org\n")
        shutil.copytree(TOP / "changes", folder / "changes", ignore=_fragments)
        shutil.copy(TOP / "pyproject.toml", folder)
        self.write("setup.cfg", "[metadata]\nname = flumeng\nversion = 0.1.0\n[x]\nversion = 7\n")
        self.write("CHANGELOG.md", f"{HEAD}\n## 0.1.0 - 2026-11-29\n\n- The first.\n")
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "made up")

    def release(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TOP / "scripts" / "release.py"), *words]
        return subprocess.run(command, cwd=self.folder, check=False, capture_output=True, text=True)


def _fragments(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.count(".") > 1]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    (tmp_path / "repository").mkdir()
    return Repository(tmp_path / "repository", monkeypatch)


@pytest.mark.slow
def test_release_collects_the_fragments_and_makes_a_tag(repository: Repository) -> None:
    repository.write("changes/source.added.md", "A source `x`.\n")
    repository.write("changes/sink.added.md", "A sink `y`.\n")
    repository.write("changes/crash.fixed.md", "`z` does not end\nwithout a word.\n")
    repository.commit()
    done = repository.release("0.2.0", "--no-check")
    assert done.returncode == 0, done.stderr
    assert repository.read("CHANGELOG.md") == (
        f"{HEAD}\n## 0.2.0 - {date.today()}\n\n### Added\n\n- A sink `y`.\n- A source `x`.\n\n"
        "### Fixed\n\n- `z` does not end\n  without a word.\n\n"
        "## 0.1.0 - 2026-11-29\n\n- The first.\n"
    )
    assert sorted(path.name for path in (repository.folder / "changes").iterdir()) == [
        "README.md",
        "template.jinja",
    ]
    assert repository.read("setup.cfg") == (
        "[metadata]\nname = flumeng\nversion = 0.2.0\n[x]\nversion = 7\n"
    )
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("log", "-1", "--format=%s") == "release: 0.2.0"
    assert repository.git("cat-file", "-t", "v0.2.0") == "tag"
    assert repository.git("rev-parse", "v0.2.0^{}") == repository.git("rev-parse", "HEAD")


def test_version_that_the_changelog_has_is_tagged_without_a_commit(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    done = repository.release("0.1.0", "--no-check")
    assert (done.returncode, done.stderr) == (0, "")
    assert repository.git("rev-parse", "v0.1.0^{}", "HEAD").split() == [before, before]


def test_existing_tag_is_refused(repository: Repository) -> None:
    repository.git("tag", "v0.2.0")
    done = repository.release("0.2.0", "--no-check")
    assert (done.returncode, done.stderr) == (
        1,
        "release: the tag v0.2.0 exists already: give the next version\n",
    )


@pytest.mark.parametrize(
    ("version", "file", "error"),
    [
        ("0.2", None, "'0.2' is no version: give three numbers, such as 1.2.0"),
        ("0.2.0", "setup.cfg", "the tree has changes: commit or remove them"),
        ("0.2.0", "left-over", "the tree has changes: commit or remove them"),
        ("0.2.0", None, "CHANGELOG.md would get nothing: changes/ is empty"),
    ],
)
def test_release_that_cannot_be_made_changes_nothing(
    repository: Repository, version: str, file: str | None, error: str
) -> None:
    before = repository.read("CHANGELOG.md")
    if file:
        repository.write(file, "changed")
    done = repository.release(version, "--no-check")
    assert (done.returncode, done.stderr) == (1, f"release: {error}\n")
    assert repository.read("CHANGELOG.md") == before
    assert repository.git("tag") == ""


@pytest.mark.parametrize(("code", "tags"), [(0, "v0.1.0"), (1, "")])
def test_tree_that_fails_the_checks_is_not_released(
    repository: Repository, code: int, tags: str
) -> None:
    repository.write("scripts/check", f"#!/bin/sh\nexit {code}\n")
    (repository.folder / "scripts" / "check").chmod(0o755)
    repository.commit()
    assert repository.release("0.1.0").returncode == code
    assert repository.git("tag") == tags
