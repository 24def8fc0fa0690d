"""An index template with types for flumeng's columns; other columns are typed by the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from flumeng.spec.sinks.elasticsearch import INDEX_PART, Elasticsearch

PRIORITY = 200
"""Above that of the templates that a cluster brings along."""
KEYWORD = {"type": "keyword", "ignore_above": 1024}
PROPERTIES: dict[str, dict[str, Any]] = {
    "body": {"type": "text"},
    "body_base64": {"type": "keyword", "index": False, "doc_values": False},
    "host": KEYWORD,
    "attrs": {"type": "flattened", "ignore_above": 1024},
    "journal": KEYWORD,
    "seq": {"type": "long"},
    "replayed": {"type": "boolean"},
}


@dataclass(frozen=True)
class Template:
    name: str
    content: bytes


def of(options: Elasticsearch, flow: str) -> Template:
    time = "@timestamp" if options.data_stream else "ts"
    content: dict[str, Any] = {
        "index_patterns": [INDEX_PART.sub("*", options.index)],
        "priority": PRIORITY,
        "template": {"mappings": {"properties": {time: {"type": "date"}, **PROPERTIES}}},
    }
    if options.data_stream:
        content["data_stream"] = {}
    return Template(f"flumeng-{flow}", msgspec.json.encode(content))
