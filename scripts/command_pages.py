"""Reference pages of the commands, from the click tree: one for each group, and one for the rest.

An option with the same text in many commands stands once, on the first page; others link to it.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click

from cli.lazy import first_sentence
from cli.main import tree

FOLDER = "reference/commands"
SINGLE = "single"
"""The page of the commands that are in no group."""
MANY = 5
"""An option that so many commands have with the same text is a shared one."""
Named = tuple[tuple[str, ...], click.Command]


def pages() -> dict[str, tuple[str, str]]:
    """The title and the text of each page, by its name."""
    groups = {words: group for words, group in _walk(tree) if isinstance(group, click.Group)}
    single = [named for named in _children((), tree) if not isinstance(named[1], click.Group)]
    every = [command for _, command in _walk(tree) if not isinstance(command, click.Group)]
    uses = Counter(text for command in every for text in map(_shared_row, _options(command)))
    shared = {text for text, count in uses.items() if count >= MANY}
    made = {"index": ("Commands", "\n".join(_index(groups, single, shared)))}
    made[SINGLE] = ("Commands without a group", "\n".join(_page("", single, shared)))
    for words, group in groups.items():
        text = "\n".join(_page(group.help or "", _children(words, group), shared))
        made["-".join(words)] = f"Commands `flumeng {' '.join(words)}`", text
    return {
        f"{FOLDER}/{name}.md": (title, f"{text.rstrip()}\n") for name, (title, text) in made.items()
    }


def _index(
    groups: dict[tuple[str, ...], click.Group], single: list[Named], shared: set[str]
) -> Iterator[str]:
    yield "All commands, and the options that many of them have."
    yield "Scripts read their [exit codes](../exit-codes.md).\n"
    yield "| command | purpose |"
    yield "|---|---|"
    for words, group in groups.items():
        yield f"| [`flumeng {' '.join(words)}`]({'-'.join(words)}.md) | {_purpose(group)} |"
    for words, command in single:
        yield f"| [`flumeng {words[0]}`]({SINGLE}.md#{words[0]}) | {_purpose(command)} |"
    yield "\nIn a usage line `[X]` is optional, and `X...` may be repeated."
    yield "`-h` or `--help` prints the text of any command, `flumeng --version` the version.\n"
    yield "## Shared options\n"
    yield "A command has those of them that its section names.\n"
    yield from _table(sorted(shared))


def _page(head: str, commands: list[Named], shared: set[str]) -> Iterator[str]:
    if head:
        yield f"{inspect.cleandoc(head)}\n"
    yield f"{' · '.join(map(_link, commands))}\n"
    for words, command in commands:
        if not isinstance(command, click.Group):
            yield from _section(words, command, shared)


def _section(words: tuple[str, ...], command: click.Command, shared: set[str]) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield f"## {' '.join(words)}\n"
    yield f"```text\nflumeng {' '.join(words)} {usage}\n```\n"
    yield f"{_marked(inspect.cleandoc(command.help or ''))}\n"
    options = list(_options(command))
    own = [_row(option) for option in options if _shared_row(option) not in shared]
    if own:
        yield from _table(own)
        yield ""
    others = [
        f"`{option.opts[0]}`{' (required)' if option.required else ''}"
        for option in options
        if _shared_row(option) in shared
    ]
    if others:
        yield f"[{'Also' if own else 'Options'}](index.md#shared-options): {', '.join(others)}.\n"


def _link(named: Named) -> str:
    words, command = named
    page = isinstance(command, click.Group)
    return f"[{words[-1]}]({'-'.join(words)}.md)" if page else f"[{words[-1]}](#{'-'.join(words)})"


def _walk(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[Named]:
    for words, command in _children(above, group):
        yield words, command
        if isinstance(command, click.Group):
            yield from _walk(command, words)


def _children(above: tuple[str, ...], group: click.Group) -> list[Named]:
    context = click.Context(group)
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return [((*above, name), command) for name, command in found if command and not command.hidden]


def _purpose(command: click.Command) -> str:
    return first_sentence(command.help or "").replace("|", "\\|")


def _options(command: click.Command) -> Iterator[click.Option]:
    return (part for part in command.params if isinstance(part, click.Option) and not part.hidden)


def _table(rows: list[str]) -> Iterator[str]:
    return iter(["| option | value | default | meaning |", "|---|---|---|---|", *rows])


def _row(option: click.Option, required: str = "required") -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = required if option.required else ""
    if option.show_default:
        given = option.default if isinstance(option.default, tuple) else (option.default,)
        default = f"`{', '.join(f'{x:g}' if isinstance(x, float) else str(x) for x in given)}`"
    meaning = option.help or ""
    if option.show_envvar and option.envvar:
        meaning += f" Variable: `{option.envvar}`."
    cells = (names, _value(option), default, _marked(" ".join(meaning.split())))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _marked(text: str) -> str:
    """Markdown of a help text: options and variables are code, as words in backticks are."""
    parts = re.split("(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"(?<![\w-])(--[a-z][a-z-]*|FLUMENG_[A-Z_]+)", r"`\1`", p) for p in parts[::2]
    ]
    return "".join(parts)


def _shared_row(option: click.Option) -> str:
    """Without whether the option is required, in which commands may differ."""
    return _row(option, required="")


def _value(option: click.Option) -> str:
    kind = option.type
    if option.is_flag:
        return ""
    if isinstance(kind, click.Choice):
        return ", ".join(f"`{choice}`" for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        noun = "whole number" if isinstance(kind, click.IntRange) else "number"
        most = None if option.name == "workers" else kind.max  # as many as this host has cores
        upper = f" to {most}" if most is not None else " or more"
        return f"{noun}, {kind.min or 0:g}{upper}"
    return f"`{option.metavar}`" if option.metavar else "text"
