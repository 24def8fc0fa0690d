"""Index template with the types of flumeng's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from flumeng.connectors.elasticsearch.options import INDEX_PART, Elasticsearch

PRIORITY = 200
"""Priority above that of the templates installed with a cluster."""
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


OPENSEARCH = {"attrs": {"type": "flat_object"}}


@dataclass(frozen=True)
class Template:
    """An index template; the first of ``contents`` that the cluster accepts is used."""

    name: str
    contents: tuple[bytes, ...]


def of(options: Elasticsearch, flow: str) -> Template:
    time = "@timestamp" if options.data_stream else "ts"
    common: dict[str, Any] = {
        "index_patterns": [INDEX_PART.sub("*", options.index)],
        "priority": PRIORITY,
    }
    if options.data_stream:
        common["data_stream"] = {}
    types = {time: {"type": "date"}, **PROPERTIES}
    contents = (
        common | {"template": {"mappings": {"properties": properties}}}
        for properties in (types, types | OPENSEARCH)
    )
    return Template(f"flumeng-{flow}", tuple(map(msgspec.json.encode, contents)))
