"""The commands ``flumeng import flume-ng`` and ``flume-og``, found as entry points."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from cli.options import json_option
from cli.output import count, show_json, show_table
from flumeng.config.flow_files import Unfit, content_of
from flumeng.platform.errors import UserError
from flumeng_flume.findings import Imported

MAX_BYTES = 16 * 2**20

files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write each flow as DIR/FLOW.yaml, and the whole report as DIR/report.txt.",
)


@click.command(name="flume-ng")
@files_argument
@click.option("--agent", metavar="NAME", help="Import only this agent of the files.")
@out_option
@json_option
def flume_ng(files: tuple[Path, ...], agent: str | None, out: Path | None, as_json: bool) -> None:
    """Import agents of Flume 1.x from their properties files.

    Give the files of all agents that send to each other: hops between them are left out.
    Environment variables are filled in as in Flume. Without --out the flows are shown.

    Exit code 1 when a property could not be mapped; all others are imported nevertheless.
    """
    from flumeng_flume.ng.flows import translate  # noqa: PLC0415  for this command alone

    _tell(translate(_contents(files), os.environ, agent), out, as_json)


@click.command(name="flume-og")
@files_argument
@out_option
@json_option
def flume_og(files: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Import nodes of Flume 0.9 from specifications of data flows, or scripts of its shell.

    Agents and the collectors behind them become one flow, so give the files of both. Without --out
    the flows are shown.

    Exit code 1 when a component could not be mapped; all others are imported nevertheless.
    """
    from flumeng_flume.og.flows import translate  # noqa: PLC0415  for this command alone

    _tell(translate(_contents(files)), out, as_json)


def _contents(files: Sequence[Path]) -> dict[str, str]:
    texts = {}
    for path in files:
        try:
            content = content_of(path, MAX_BYTES)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        except Unfit as error:
            raise UserError(f"{path}: {error}") from error
        try:
            texts[str(path)] = content.decode()
        except UnicodeDecodeError:
            texts[str(path)] = content.decode("latin-1")
    return texts


def _tell(imported: Imported, out: Path | None, as_json: bool) -> None:
    if out is not None:
        _write(imported, out)
    if as_json:
        show_json(imported)
    else:
        if out is None:
            for flow in imported.flows:
                click.echo(f"{flow.text}---")
        show_table(
            ("FILE", "LINE", "SUBJECT", "OUTCOME", "REASON"),
            (
                (f.place.file, f.place.line, f.place.subject, f.outcome, f.message)
                for f in imported.findings
                if out is None or f.outcome != "mapped"
            ),
        )
        click.echo(_summary(imported), err=True)
    if imported.count("not mapped"):
        raise SystemExit(1)


def _summary(imported: Imported) -> str:
    return (
        f"{count(len(imported.flows), 'flow')}; {imported.count('mapped')} mapped, "
        f"{imported.count('approximately')} approximately, "
        f"{imported.count('not mapped')} not mapped"
    )


def _write(imported: Imported, out: Path) -> None:
    """Write all files, or none when one exists with other content. Raises UserError."""
    texts = {out / f"{flow.name}.yaml": flow.text for flow in imported.flows}
    texts[out / "report.txt"] = "".join(f"{finding}\n" for finding in imported.findings)
    try:
        for path, text in texts.items():
            if path.exists() and path.read_bytes() != text.encode():
                raise UserError(f"{path}: exists with other content: name another --out")
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text)
    except OSError as error:
        raise UserError(f"{error.filename or out}: cannot be written: {error.strerror}") from error
