"""Links from sentences: names lead to their pages, commands in backticks to their actions.

Only names of the picture become links. All text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

from flumeng.console.actions.action import Action
from flumeng.console.actions.table import ACTIONS
from flumeng.console.pictures import Picture
from flumeng.console.who.viewers import Viewer

CODE = re.compile(r"`([^`]+)`")
NAME = re.compile(
    r"(?<![\w/.-])(?:(?P<task>[\w.~-]+/[\w-]+(?:\.[\w-]+)*)"
    r"|(?P<kind>flow|node|nodes|on|journal|reader) (?P<name>[\w.~-]*[\w]))(?![\w/-])"
)
PAGES: Mapping[tuple[str, ...], str] = {
    ("flow", "lag"): "/flows/{flow}/partitions",
    ("flow", "show"): "/flows/{flow}",
    ("flow", "history"): "/flows/{flow}/revisions",
    ("flow", "apply"): "/flows/{flow}/edit",
    ("flow", "dead", "list"): "/flows/{flow}/dead",
    ("task", "list"): "/flows/{flow}/events",
    ("node", "story"): "/nodes/{node}#log",
    ("cursor", "list"): "/cursors?q={flow}",
}
"""The pages that show what a command prints, or do what it does."""


@jinja2.pass_context
def linked(context: jinja2.runtime.Context, text: str, about: str = "") -> Markup:
    """Return a sentence with links. ``about``: its problem, which names the flow, node and task
    that commands without a name mean."""
    picture, viewer = context.get("picture"), context.get("viewer")
    if not isinstance(picture, Picture):
        return _coded(text)
    subjects = _subjects(picture, f"{about} {text}")
    parts = []
    for position, part in enumerate(CODE.split(text)):
        if position % 2:
            href = _command_page(part, subjects, viewer)
            code = Markup("<code>{}</code>").format(part)
            parts.append(Markup('<a href="{}">{}</a>').format(href, code) if href else code)
        else:
            parts.append(_named(picture, part))
    return Markup("").join(parts)


def _coded(text: str) -> Markup:
    parts = CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if position % 2 else escape(part)
        for position, part in enumerate(parts)
    )


def _named(picture: Picture, text: str) -> Markup:
    parts, end = [], 0
    for start, stop, href in _found(picture, text):
        parts += [escape(text[end:start])]
        parts += [Markup('<a href="{}">{}</a>').format(href, text[start:stop])]
        end = stop
    return Markup("").join([*parts, escape(text[end:])])


def _found(picture: Picture, text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the place of each name and its page."""
    for match in NAME.finditer(text):
        if match["task"]:
            flow = match["task"].partition("/")[0]
            if flow in picture.flow_names:
                yield *match.span("task"), f"/flows/{quote(flow, safe='')}#tasks"
            continue
        name = match["name"]
        folder = {"journal": "journals", "flow": "flows", "reader": "flows"}.get(
            match["kind"], "nodes"
        )
        known = {
            "journals": picture.journal_names,
            "flows": picture.flow_names,
            "nodes": picture.node_names,
        }[folder]
        if name in known:
            yield *match.span("name"), f"/{folder}/{quote(name, safe='')}"


def _subjects(picture: Picture, text: str) -> dict[str, str]:
    """Return the first flow, node and task that the text names."""
    subjects: dict[str, str] = {}
    for match in NAME.finditer(text):
        if match["task"]:
            flow, _, task = match["task"].partition("/")
            if flow in picture.flow_names:
                subjects.setdefault("flow", flow)
                subjects.setdefault("task", task)
        elif match["kind"] in ("flow", "reader") and match["name"] in picture.flow_names:
            subjects.setdefault("flow", match["name"])
        elif match["kind"] in ("node", "nodes", "on") and match["name"] in picture.node_names:
            subjects.setdefault("node", match["name"])
    return subjects


def _command_page(command: str, subjects: Mapping[str, str], viewer: object) -> str:
    """Return the page of a command line; empty if there is none that the viewer may use."""
    words = command.split()
    if words[:1] != ["flumeng"]:
        return ""
    for verb, pattern in PAGES.items():
        if tuple(words[1 : 1 + len(verb)]) == verb:
            name = "node" if "{node}" in pattern else "flow"
            given = "".join(words[1 + len(verb) :][:1]) or subjects.get(name, "")
            return pattern.format(**{name: quote(given, safe="")}) if given else ""
    for action, verb, rest in _templates():
        if words[1 : 1 + len(verb)] == list(verb):
            return _action_page(action, rest, words[1 + len(verb) :], subjects, viewer)
    return ""


def _action_page(
    action: Action,
    rest: tuple[str, ...],
    words: list[str],
    subjects: Mapping[str, str],
    viewer: object,
) -> str:
    fields = {each.name for each in action.fields}
    given = {name: subjects[name] for name in fields & set(subjects)}
    names = [word for word in words if not word.startswith("--")]
    for template, word in zip(rest, names, strict=False):
        keys = re.findall(r"{(\w+)}", template)
        given |= dict(zip(keys, word.split("/", len(keys) - 1), strict=False))
    given |= {word[2:]: "true" for word in words if word[2:] in fields and word.startswith("--")}
    if not isinstance(viewer, Viewer) or not viewer.may_change(action.flow(given)):
        return ""
    return f"/do/{action.name}?{urlencode(given)}"


@lru_cache(maxsize=1)
def _templates() -> tuple[tuple[Action, tuple[str, ...], tuple[str, ...]], ...]:
    """Return each action with the fixed words of its command line and those with names."""
    found = []
    for action in ACTIONS.values():
        words = action.command_words.split()
        fixed = next((at for at, word in enumerate(words) if "{" in word), len(words))
        found.append((action, tuple(words[:fixed]), tuple(words[fixed:])))
    return tuple(sorted(found, key=lambda each: -len(each[1])))
