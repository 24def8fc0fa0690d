"""Rules for the properties of Flume's components.

A table maps the name of a property, in which ``*`` matches anything, to an answer: an option, or
why there is none. ``fill`` applies a table and returns the options of a component of flumeng.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from flumeng_flume.findings import Location, Log


@dataclass(frozen=True)
class Setting:
    """A property of a component. ``raw`` is its text as written; ``value`` has the known variables
    filled in."""

    location: Location
    value: str
    raw: str


@dataclass(frozen=True)
class To:
    """The property becomes an option (``a.b`` is option b in a); ``but`` describes a difference."""

    option: str
    convert: Callable[[str], Any] = str
    but: str = ""


@dataclass(frozen=True)
class Needless:
    """The property needs no setting in flumeng."""

    why: str


@dataclass(frozen=True)
class Differs:
    """flumeng works in another way here, and has no option for the property."""

    why: str


@dataclass(frozen=True)
class Missing:
    """flumeng has no equivalent; ``why`` is the manual step instead."""

    why: str


@dataclass(frozen=True)
class Elsewhere:
    """Other code maps the property, not the table."""


Answer = To | Needless | Differs | Missing | Elsewhere
Answers = Mapping[str, Answer]
Settings = Mapping[str, Setting]


@dataclass
class Options:
    """The options of a component, and the property that each is from. ``name`` is set when it
    differs from the component in the table."""

    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Setting] = field(default_factory=dict)

    def set(self, option: str, value: Any, origin: Setting | None = None) -> None:
        outer, _, inner = option.partition(".")
        if inner:
            self.values.setdefault(outer, {})[inner] = value
        else:
            self.values[outer] = value
        if origin is not None:
            self.origins[option] = origin

    def drop(self, option: str) -> None:
        outer, _, inner = option.partition(".")
        if inner:
            self.values.get(outer, {}).pop(inner, None)
            if not self.values.get(outer, True):
                del self.values[outer]
        else:
            self.values.pop(outer, None)


def fill(settings: Settings, answers: Answers, log: Log) -> Options:
    """Return the options that the properties become; report properties that have no row."""
    options = Options()
    for name, setting in settings.items():
        answer = find(answers, name)
        match answer:
            case None:
                _unknown(name, setting, answers, log)
            case To():
                _convert(setting, answer, options, log)
            case Needless(why):
                log.mapped(setting.location, f"nothing to set: {why}")
            case Differs(why):
                log.differs(setting.location, why)
            case Missing(why):
                log.missing(setting.location, why)
            case Elsewhere():
                pass
    return options


def _unknown(name: str, setting: Setting, answers: Answers, log: Log) -> None:
    meant = next((key for key in answers if key.lower() == name.lower()), None)
    if meant is not None:
        log.mapped(
            setting.location,
            f"nothing to set: it is spelled {meant}, so Flume ignores this one too",
        )
    else:
        log.differs(setting.location, "left out: Flume's guide has no such property")


def find(answers: Answers, name: str) -> Answer | None:
    if name in answers:
        return answers[name]
    return next(
        (row for key, row in answers.items() if "*" in key and fnmatchcase(name, key)), None
    )


def _convert(setting: Setting, answer: To, options: Options, log: Log) -> None:
    if (unknown := unresolved(setting.value)) is not None:
        log.missing(setting.location, f"the value of {unknown} is not known: set it, import again")
        return
    try:
        value = answer.convert(setting.value)
    except ValueError as error:
        log.missing(setting.location, f"{error}; found {shown(setting.value)}")
        return
    options.set(answer.option, value, setting)
    setting_text = (
        answer.option if isinstance(value, dict | list) else f"{answer.option}: {written(value)}"
    )
    if answer.but:
        log.differs(setting.location, f"{setting_text}, but {answer.but}")
    else:
        log.mapped(setting.location, setting_text)


_REFERENCE = re.compile(r"\$\{(?P<inside>[^{}]*)\}")


def unresolved(value: str) -> str | None:
    """Return the first reference to an unknown variable in a value; None when there is none."""
    match = _REFERENCE.search(value)
    return match[0] if match else None


def secret_reference(setting: Setting) -> str:
    """Return ``${secret:NAME}``, named after the variable in the value, or after the property."""
    match = _REFERENCE.fullmatch(setting.raw)
    text = match["inside"] if match else setting.location.subject
    if match and (quoted := re.search(r"\[\s*[\"']?([^\"'\]]+)", text)):
        text = quoted[1]
    name = re.sub("[^A-Za-z0-9_-]+", "-", text).strip("-_")[:200]
    return "${secret:" + (name or "password") + "}"


def shown(value: str) -> str:
    short = value if len(value) <= 60 else value[:57] + "..."
    return f'"{short}"' if short.isprintable() else repr(short)


def whole_path(setting: Setting, log: Log) -> str:
    """Return an absolute path; report a relative one: Flume's working directory is unknown."""
    if setting.value.startswith("/") or unresolved(setting.value):
        return setting.value
    path = "/" + setting.value.removeprefix("./")
    log.missing(setting.location, f"is relative to Flume's working directory: correct {path}")
    return path


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def whole(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,18}", text.strip()):
        raise ValueError("expected a whole number")
    return int(text)


def positive(text: str) -> int:
    if (number := whole(text)) <= 0:
        raise ValueError("expected a number over 0")
    return number


def truth(text: str) -> bool:
    return text.strip().lower() == "true"


def millis(text: str) -> float | int:
    """Return milliseconds as seconds."""
    seconds = positive(text) / 1000
    return int(seconds) if seconds == int(seconds) else seconds


def words(text: str) -> list[str]:
    """Return the words between commas or white space."""
    return [word for word in re.split(r"[,\s]+", text.strip()) if word]
