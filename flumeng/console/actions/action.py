"""An action: its fields, its command line, and how it acts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta

from flumeng.console.actions.words import as_option
from flumeng.console.console import Console
from flumeng.console.path_names import NAMES, names_in
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.preview import Preview
from flumeng.control.zookeeper import ReadableStore

Given = Mapping[str, Any]
"""The names in the path, and the fields, with the types of their schemas."""

Name = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:@=+~-]{1,200}(?!\n)$")]
Text = Annotated[str, Meta(min_length=1, max_length=1_000_000)]
Line = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]*(?!\n)$")]
Reason = Annotated[str, Meta(max_length=1000)]
Number = Annotated[int, Meta(ge=1, le=1_000_000_000)]
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can have it, and no page or terminal can show it."""


@dataclass(frozen=True)
class Field:
    """A field of an action's form and JSON body. ``type``: of its value, with its limits.
    ``words``: those of a command line for its name and its value, or None."""

    name: str
    doc: str
    type: Any
    required: bool = False
    words: Callable[[str, Any], list[str]] = as_option

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of its value."""
        return msgspec.json.schema(self.type)

    def read(self, value: Any, *, text: bool = False) -> Any:
        """Return the checked value. ``text``: a form's text, such as ``5`` or ``true``. Raises
        ValueError with the expected type."""
        if text and self.schema.get("type") == "array":
            value = str(value).split()
        try:
            read = msgspec.convert(value, self.type, strict=not text)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        for each in read if isinstance(read, list) else (read,):
            if isinstance(each, str) and LONE_SURROGATE.search(each):
                raise ValueError("a surrogate without its pair is no character")
        return read


@dataclass(frozen=True)
class Foreseen:
    """The effects of an action. ``preview``: as the command's ``--dry-run --json``, if it has one.
    ``diff``: of the flow's text."""

    sentences: Sequence[str]
    preview: Any = None
    diff: str = ""


@dataclass(frozen=True)
class Answer:
    """The result of an action. ``value``: the JSON of the command. ``foreseen``: of an action that
    knows it only then. ``first`` is called before the commit, and has no effect without it.
    ``then`` is called afterwards and may be repeated; ``noted``: the audit's sentence at its end.
    """

    value: Any
    foreseen: Foreseen | None = None
    first: Callable[[], None] | None = None
    then: Callable[[], None] | None = None
    noted: str = ""


Lines = Annotated[list[Line], Meta(max_length=100)]
Foresee = Callable[[Console, ReadableStore, Given], Foreseen]
Act = Callable[[Console, Operator, Given], Answer]


@dataclass(frozen=True)
class Action:
    """A change. ``name``: such as ``flow-pause``. ``path``: below ``/api/v1``, names in braces.
    ``line``: of its command, fields in braces; the other fields are options of it. ``foresee``: its
    effects, from the present records; None if the answer has it. ``act``: does it by the operator
    alone; the result is the JSON of the command. Both raise FlumengError. ``page``: the page to
    return to. ``body``: the fields beside the names in the path. ``if_revision``: whether the
    command has this option. ``changes``: False if it only checks."""

    name: str
    path: str
    title: str
    doc: str
    line: str
    foresee: Foresee | None
    act: Act
    page: str
    body: tuple[Field, ...] = ()
    if_revision: bool = False
    changes: bool = True
    reason_required: bool = False

    @property
    def names(self) -> list[str]:
        return names_in(self.path)

    @property
    def fields(self) -> tuple[Field, ...]:
        in_path = (Field(name, NAMES[name], Name, required=True) for name in self.names)
        return (*in_path, *self.body)

    def flow(self, given: Given) -> str | None:
        """Return whose operators may do it, and whose revision ``If-Match`` names; None for the
        cluster."""
        flow: str | None = given.get("flow")
        return flow

    def back(self, given: Given) -> str:
        """Return the path of the page to return to; the first page without its name."""
        try:
            return self.page.format_map(
                {name: quote(str(text), "") for name, text in given.items()}
            )
        except KeyError:
            return "/"

    @property
    def body_fields(self) -> tuple[Field, ...]:
        """The fields of the JSON body; the others are in the path."""
        reason = Field("reason", "Why; kept in the audit.", Reason, self.reason_required)
        return (*self.body, reason) if self.changes else self.body

    @property
    def body_schema(self) -> Mapping[str, Any]:
        """JSON Schema of the body."""
        return {
            "type": "object",
            "properties": {
                each.name: {**each.schema, "description": each.doc} for each in self.body_fields
            },
            "required": [each.name for each in self.body_fields if each.required],
            "additionalProperties": False,
        }

    def words(self, given: Given) -> list[str]:
        """Return the words of its command line, without ``flumeng``."""
        words = [word.format_map(given) for word in self.line.split()]
        for each in self.body:
            if each.name not in names_in(self.line):
                words += each.words(each.name, given.get(each.name))
        return words

    @property
    def command_words(self) -> str:
        """Its command line, with names of fields in braces."""
        return " ".join(self.words({name: f"{{{name}}}" for name in names_in(self.line)}))

    def command(
        self, given: Given, *, hosts: str = "", reason: str = "", if_revision: int | None = None
    ) -> str:
        """Return the command line, quoted for a shell."""
        words = ["flumeng", *self.words(given)]
        if hosts and self.changes:
            words += ["--zk", hosts]
        if if_revision is not None and self.if_revision:
            words += ["--if-revision", str(if_revision)]
        if reason:
            words += ["--reason", reason]
        return shlex.join(words)


def says(*sentences: str) -> Foresee:
    """Return a function that foresees these sentences, with fields in braces."""
    return lambda _console, _store, given: Foreseen([each.format_map(given) for each in sentences])


def lines_of(preview: Preview) -> list[str]:
    """Return a preview as sentences."""
    lines = [*preview.left]
    for move in preview.moves:
        where = ""
        if move.before != move.after:
            where += f" from {move.before}" if move.before else ""
            where += f" {'to' if move.before else 'on'} {move.after}" if move.after else ""
        lines.append(f"task {move.task} {move.what}{where}")
    if not preview.moves:
        lines.append("no task will move")
    lines += preview.why
    if not preview.complete:
        lines.append("this preview is incomplete: more would follow")
    return lines
