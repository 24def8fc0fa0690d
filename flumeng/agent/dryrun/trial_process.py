"""``python -m flumeng.agent.dryrun.trial_process``: runs filters on events for another process.

Reads one JSON object from standard input, and prints a JSON object for each event. It starts no
Spark and calls no function of users. For a text that is tried it reads no secret and no file.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from flumeng.agent.dryrun import rendering
from flumeng.agent.dryrun import tap as taps
from flumeng.agent.dryrun.cases import micros
from flumeng.agent.dryrun.explaining import as_json, explain, outcome
from flumeng.agent.dryrun.filter_tree import FilterTree
from flumeng.agent.dryrun.received_lines import ReceivedLines
from flumeng.agent.dryrun.trials import refuse
from flumeng.config import check_flow, parse_flow
from flumeng.events.schema import READ_SCHEMA
from flumeng.platform import arrow_pandas, logs, secrets
from flumeng.platform.errors import FlumengError, UserError

MEMORY_BYTES = 4 << 30
"""Of address space, most of which Arrow only reserves."""


def no_spark() -> NoReturn:
    """Stands for a Spark session. Raises UserError."""
    raise UserError(
        "a filter here needs Spark, which the console does not start: use `flumeng flow try` or "
        "`flumeng flow tap`"
    )


def tapped(asked: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield events of a running flow as lines of JSON; a failed server as ``{"@lost": why}``."""
    spec = taps.as_tapped(parse_flow(asked["text"]), asked["at"], asked["where"])
    tree = FilterTree(spec.stages, no_spark, READ_SCHEMA)
    tap = taps.Tap(asked["flow"], asked["addresses"])
    left = int(asked["most"])
    try:
        for output in taps.shown(tap, tree, spec.multiline, asked["rate"], asked["seconds"]):
            if isinstance(output, taps.Lost):
                yield json.dumps({"@lost": str(output.error)}).encode() + b"\n"
            elif not (output.failed and asked["at"] is not None):
                events = output.batches[0].slice(0, left)
                end = taps.end_of(output, spec) if asked["at"] is None else None
                yield bytes(rendering.json_lines(events, end))
                left -= events.num_rows
            if left <= 0:
                return
    finally:
        tap.stop()


def explained(asked: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the trace of each event, with ``before`` and ``outcome`` of each step."""
    spec = check_flow(asked["text"])
    refuse(spec)
    received = ReceivedLines(spec)
    with secrets.placeholders():
        for trace in explain(spec, no_spark, [*_events(received, asked["events"])]):
            document = as_json(trace)
            steps = [
                {**step, "before": own.before, "outcome": outcome(own)}
                for step, own in zip(document["steps"], trace.steps, strict=True)
            ]
            yield json.dumps({**document, "steps": steps}, ensure_ascii=False).encode() + b"\n"


def _events(
    received: ReceivedLines, events: Sequence[Mapping[str, Any]]
) -> Iterator[pa.RecordBatch]:
    for event in events:
        origin = received.origin(event.get("host"), event.get("attrs") or {})
        time = micros(event["ts"]) if event.get("ts") else None
        yield from received.event(str(event["body"]).encode(), origin, time)


WORK = {"tap": tapped, "explain": explained}


def main() -> int:
    logs.to_stderr("trial")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    arrow_pandas.leave_out()
    asked = json.load(sys.stdin)
    try:
        for line in WORK[asked["work"]](asked):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        return 0
    except (FlumengError, ValueError) as error:
        sys.stdout.buffer.write(json.dumps({"@error": str(error)}).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
