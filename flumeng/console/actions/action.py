"""An action: its fields, its command line, and how it acts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from flumeng.console.console import Console
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
    """A field of an action's form and JSON body. ``type``: of its value, with its limits."""

    name: str
    doc: str
    type: Any
    required: bool = False

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """JSON Schema of its value."""
        return msgspec.json.schema(self.type)

    def read(self, value: Any, *, text: bool = False) -> Any:
        """Return the checked value. ``text``: a form's text, such as ``5`` or ``true``. Raises
        ValueError with what was expected."""
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


def flow_of(given: Given) -> str | None:
    flow: str | None = given.get("flow")
    return flow


@dataclass(frozen=True)
class Action:
    """A change. ``name``: such as ``flow-pause``. ``path``: below ``/api/v1``, names in braces.
    ``words``: of its command line. ``foresee``: its effects, from the present records; None
    if the answer has it.
    ``act``: does it by the operator alone; the result is the JSON of the command. Both raise
    FlumengError. ``options``: the options of the command that the console may add. ``flow``: whose
    operators may do it, and whose revision ``If-Match`` names; None for the cluster. ``back``: the
    page to return to. ``answer``: the type of the JSON. ``changes``: False if it only checks."""

    name: str
    path: str
    title: str
    doc: str
    words: Callable[[Given], Sequence[str]]
    foresee: Callable[[Console, ReadableStore, Given], Foreseen] | None
    act: Callable[[Console, Operator, Given], Answer]
    back: Callable[[Given], str]
    fields: tuple[Field, ...] = ()
    options: frozenset[str] = frozenset({"--reason"})
    flow: Callable[[Given], str | None] = flow_of
    answer: Any = dict[str, Any]
    changes: bool = True
    reason_required: bool = False
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        object.__setattr__(self, "names", tuple(p[1:-1] for p in parts if p.startswith("{")))

    @property
    def body_fields(self) -> tuple[Field, ...]:
        """The fields of the JSON body; the others are in the path."""
        own = tuple(each for each in self.fields if each.name not in self.names)
        return (*own, reason_field(required=self.reason_required)) if self.changes else own

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

    @property
    def command_words(self) -> Sequence[str]:
        """The words of its command line, with the names of its required fields in braces."""
        given = {each.name: f"{{{each.name}}}" for each in self.fields if each.required}
        return ["flumeng", *self.words(given)]

    def command(
        self, given: Given, *, hosts: str = "", reason: str = "", if_revision: int | None = None
    ) -> str:
        """Return the command line, quoted for a shell."""
        words = ["flumeng", *self.words(given)]
        if hosts and self.changes:
            words += ["--zk", hosts]
        if if_revision is not None and "--if-revision" in self.options:
            words += ["--if-revision", str(if_revision)]
        if reason and "--reason" in self.options:
            words += ["--reason", reason]
        return shlex.join(words)


def reason_field(*, required: bool = False) -> Field:
    return Field("reason", "Why; kept in the audit.", Reason, required)


FLOW = Field("flow", "The flow.", Name, required=True)
NODE = Field("node", "The node.", Name, required=True)


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
