"""A readable page of the API, made from its description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flumeng.console.api.openapi import document
from flumeng.console.pages import rendering


@dataclass(frozen=True)
class Operation:
    """One method of a path. ``answer``: the name of its type, and ``many`` if it is a list."""

    method: str
    path: str
    id: str
    summary: str
    description: str
    parameters: tuple[Mapping[str, Any], ...]
    answer: str
    many: bool


def operations(described: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            schema = _schema(operation["responses"].get("200", {}))
            many = schema.get("type") == "array"
            reference = (schema.get("items", {}) if many else schema).get("$ref", "")
            fields = _schema(operation.get("requestBody", {}))
            yield Operation(
                method.upper(),
                path,
                operation["operationId"],
                operation["summary"],
                operation.get("description", ""),
                (*operation.get("parameters", ()), *_fields(fields)),
                reference.rpartition("/")[2],
                many,
            )


def _schema(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the first content of an answer or a body."""
    for content in described.get("content", {}).values():
        schema: Mapping[str, Any] = content["schema"]
        return schema
    return {}


def _fields(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name, each in schema.get("properties", {}).items():
        yield {
            "name": name,
            "in": "body",
            "required": name in schema.get("required", ()),
            "description": each.get("description", ""),
            "schema": each,
        }


def kind(schema: Mapping[str, Any]) -> str:
    """Return a type in words, such as ``list of TaskRow`` or ``number or null``."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'])}" if schema.get("items") else "list"
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping) and values:
        return f"object of {kind(values)}"
    return str(schema.get("type", "any"))


def page(request: Request) -> Response:
    described = document()
    return rendering.page(
        request,
        "api.html",
        operations=[*operations(described)],
        schemas=described["components"]["schemas"],
        about=described["info"]["description"],
        kind=kind,
    )


ROUTES = [Route("/api", page)]
