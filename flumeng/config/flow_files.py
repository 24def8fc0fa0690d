"""Flow files on disk: all are checked before any is used."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flumeng.config import FlowSpec, Problem, SpecError, check_flow
from flumeng.config.document import MAX_BYTES
from flumeng.config.flow_names import why_not_applied
from flumeng.platform.errors import UserError

STANDARD_INPUT = Path("-")
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class FlowFile:
    path: Path
    text: str
    spec: FlowSpec


class FlowFilesError(UserError):
    """Every problem of every flow file that was read."""

    def __init__(self, problems: Sequence[tuple[Path, Problem]]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
        super().__init__("\n".join([f"{count} in flow files:", *map(_sentence, self.problems)]))


def flow_files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files in the given order, and for a directory its flow files (.yaml or .yml, not
    .test.yaml), sorted. Raises ``UserError`` for a directory without such files."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = [
            file
            for file in sorted(path.iterdir())
            if file.suffix in SUFFIXES and Path(file.stem).suffix != ".test"
        ]
        if not inside:
            raise UserError(f"{path}: no flow file (.yaml or .yml) is in this directory")
        files += inside
    return files


def read_flows(files: Sequence[Path]) -> list[FlowFile]:
    """Read and check all files, of distinct flows. Raises ``FlowFilesError`` with all problems."""
    read: list[FlowFile] = []
    problems: list[tuple[Path, Problem]] = []
    first: dict[str, Path] = {}
    for path in files:
        try:
            text = content_of(path).decode()
            flow_file = FlowFile(path, text, check_flow(text))
        except OSError as error:
            problems.append((path, Problem(0, "", f"cannot be read: {error.strerror}")))
        except Unfit as error:
            problems.append((path, Problem(0, "", str(error))))
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            problems.append((path, Problem(line, "", "is not UTF-8")))
        except SpecError as error:
            problems += [(path, problem) for problem in error.problems]
        else:
            name = flow_file.spec.flow
            if name in first:
                message = f"flow {name} is also in {first[name]}"
                problems.append((path, Problem(0, "flow", message)))
            if why := why_not_applied(name):
                problems.append((path, Problem(0, "flow", why)))
            first.setdefault(name, path)
            read.append(flow_file)
    if problems:
        raise FlowFilesError(problems)
    return read


class Unfit(Exception):  # noqa: N818  reported as a problem
    """The file is too large or not regular, and is not read."""


def content_of(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """Read a regular file, without blocking, or standard input. Raises ``OSError``, ``Unfit``."""
    if path == STANDARD_INPUT:
        return _at_most(sys.stdin.buffer.read(most_bytes + 1), most_bytes)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123  at once
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unfit("is no regular file")
        return _at_most(file.read(most_bytes + 1), most_bytes)


def _at_most(content: bytes, most_bytes: int) -> bytes:
    if len(content) > most_bytes:
        raise Unfit(f"is larger than {most_bytes // 1024} KiB")
    return content


def _sentence(located: tuple[Path, Problem]) -> str:
    path, problem = located
    where = f"{path}:{problem.line}" if problem.line else str(path)
    return ": ".join(part for part in (where, problem.path, problem.message) if part)
