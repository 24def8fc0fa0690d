"""Outcomes of cases as JUnit XML, as CI servers read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree as ET

from flumeng.agent.dryrun.outcomes import Outcome


def junit(outcomes: Sequence[Outcome], told: dict[str, str]) -> str:
    """A suite for each file; ``told`` has what is said of those that have not passed, by place."""
    root = ET.Element("testsuites", _numbers(outcomes))
    for file, found in groupby(outcomes, key=lambda outcome: outcome.file):
        of_file = list(found)
        suite = ET.SubElement(root, "testsuite", {"name": file, **_numbers(of_file)})
        for outcome in of_file:
            seconds = f"{outcome.seconds:.3f}"
            case = ET.SubElement(
                suite, "testcase", {"classname": file, "name": outcome.name, "time": seconds}
            )
            if not outcome.passed:
                text = told[outcome.place]
                kind = "error" if outcome.error else "failure"
                message = text.splitlines()[0]
                ET.SubElement(case, kind, {"message": message}).text = text
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, "unicode")}\n'


def _numbers(outcomes: Sequence[Outcome]) -> dict[str, str]:
    return {
        "tests": str(len(outcomes)),
        "failures": str(sum(bool(one.differences) for one in outcomes)),
        "errors": str(sum(bool(one.error) for one in outcomes)),
        "time": f"{sum(one.seconds for one in outcomes):.3f}",
    }
