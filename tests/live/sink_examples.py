"""The flows of the docs of sinks, as tests run them against servers of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flumeng.config import parse_flow

TOP = Path(__file__).parents[2]
PAGES = sorted((TOP / "flumeng" / "connectors").glob("*/README.md"))
SOURCE = "flow: example\nsources: [{syslog: {listen: '127.0.0.1:0'}}]\n"


def example(mark: str, changes: Mapping[str, str]) -> dict[str, Any]:
    """The only flow of these pages that contains ``mark``, with the test's addresses, paths and
    names: each of ``changes`` has to occur in it."""
    pages = "\n".join(page.read_text() for page in PAGES)
    texts = re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL)
    (text,) = (text for text in texts if all(part in text for part in (mark, *changes)))
    for written, given in changes.items():
        text = text.replace(written, given)
    flow: dict[str, Any] = yaml.safe_load(text if "flow:" in text else SOURCE + text)
    return flow


def first_sink(flow: Mapping[str, Any]) -> Any:
    """The options of its first sink, checked like a user's flow."""
    return parse_flow(json.dumps(flow)).sinks[0].options
