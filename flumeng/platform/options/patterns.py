"""Checks of patterns in options: regular expressions, time patterns in paths, time zones. Events
are matched with RE2. Control processes must not load it, so syntax that RE2 lacks is refused."""

from __future__ import annotations

import re
import warnings
from zoneinfo import ZoneInfo

from flumeng.platform.options.problems import nearest

TIME_PATTERNS = ("%Y", "%m", "%d", "%H", "%M")
SECRET = re.compile(r"\$\{secret:([A-Za-z0-9][A-Za-z0-9_-]{0,199})\}", re.ASCII)
SECRET_NAME = re.compile(
    r"password|passphrase|secret|token|credential$|(access|account|private|api).?key", re.I
)
"""Names of options whose values are secrets."""
NETWORK_SCHEMES = (
    "db2", "http", "https", "kafka", "mariadb", "mysql", "postgresql", "sqlserver", "tcp", "tls",
)  # fmt: skip
SCHEMES = ("file", "s3a", "s3n", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")

FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
"""A column's value in a path: ``app={app}``."""

_NAME = re.compile("[a-z0-9][a-z0-9-]{0,62}", re.ASCII)

_TOKENS = re.compile(
    r"\\(?P<escape>.)"
    r"|(?P<set>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])"
    r"|\(\?(?P<group><?[=!]|P=|\(|>|\#)"
    r"|\(\?(?P<flags>[a-zA-Z-]+)[:)]"
    r"|(?P<possessive>[*+?}]\+)",
    re.DOTALL,
)
_NOT_RE2 = {
    "=": "look-ahead", "!": "look-ahead", "<=": "look-behind", "<!": "look-behind",
    "P=": "back-references", "(": "conditions", ">": "atomic groups", "#": "comments",
}  # fmt: skip
_MAX_REPEAT = 1000


def check_name(text: str) -> None:
    """Check the name of a flow, or of a part of it."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            "expected 1 to 63 small letters, digits and dashes that do not start with a dash"
        )


def check_regex(text: str) -> None:
    """Check a pattern that both ``re`` and RE2 accept, with at least one named group."""
    pattern = _checked(text)
    if not pattern.groupindex:
        raise ValueError("expected at least one named group, like (?P<status>[0-9]+)")
    if pattern.groups > len(pattern.groupindex):
        raise ValueError("expected a name in each group: (?P<name>...), or (?:...) for no column")
    for name in pattern.groupindex:
        if not name.isascii():
            raise ValueError(f"expected group names of ASCII letters, digits and _, not {name}")


def check_re2(text: str) -> None:
    _checked(text)


def check_search(text: str) -> None:
    """Check a pattern that both ``re`` and RE2 accept, and that does not match an empty text."""
    if _checked(text).search("") is not None:
        raise ValueError("expected a pattern that an empty text does not match")


def _checked(text: str) -> re.Pattern[str]:
    try:
        pattern = _compiled(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a regular expression: {error}") from None
    for token in _TOKENS.finditer(text):
        _refuse_what_re2_lacks(token)
    for repeat in re.finditer(r"\{(\d+)(?:,(\d*))?\}", text):
        if max(int(bound) for bound in repeat.groups() if bound) > _MAX_REPEAT:
            raise ValueError(f"expected at most {_MAX_REPEAT} repetitions, not {repeat[0]}")
    return pattern


def _refuse_what_re2_lacks(token: re.Match[str]) -> None:
    escape, group = token["escape"], token["group"]
    if group:
        raise ValueError(f"no {_NOT_RE2[group]} in RE2, which matches the events: (?{group}")
    if token["possessive"]:
        raise ValueError(
            f"no possessive repeats in RE2, which matches the events: {token['possessive']}"
        )
    if escape and escape in "123456789":
        raise ValueError(f"no back-references in RE2, which matches the events: \\{escape}")
    if escape and escape in "ZNuU":
        raise ValueError(f"no \\{escape} in RE2, which matches the events")
    unknown = set(token["flags"] or "") - set("imsU-")
    if unknown:
        raise ValueError(f"no flag {min(unknown)} in RE2, which matches the events")


def group_names(text: str) -> tuple[str, ...]:
    """Return the named groups of a pattern that ``check_regex`` accepts, in order."""
    return tuple(_compiled(text).groupindex)


def check_timezone(text: str) -> None:
    """Check a name of the IANA time zone database of this host."""
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError('expected a time zone, like "Europe/Berlin"') from error


def check_lake_path(text: str) -> None:
    """Check a directory: absolute or with a scheme, a fixed part before its first pattern."""
    text, _ = split_query(text)
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme not in SCHEMES:
            raise ValueError(f'unknown scheme "{scheme}"; {nearest(scheme, SCHEMES)}')
        if not rest.strip("/"):
            raise ValueError('expected a directory, like "s3a://lake/web"')
        if scheme == "file" and not rest.startswith("/"):
            raise ValueError('expected an absolute path, like "file:///data/web"')
    elif not text.startswith("/"):
        raise ValueError('expected an absolute path or a URL, like "/data/web" or "s3a://lake/web"')
    if ".." in text.split("/"):
        raise ValueError("expected a path without ..")
    for used in re.findall("%.?", text, re.DOTALL):
        if used not in TIME_PATTERNS:
            raise ValueError(f"expected only the time patterns {', '.join(TIME_PATTERNS)}")
    path = rest if separator else text
    if set(FIELD.sub("", path)) & set("{}"):
        raise ValueError("expected a column in braces, like app={app}")
    fixed = fixed_part(path)
    if fixed != path and "/" not in fixed.lstrip("/"):
        raise ValueError("expected a fixed directory before the first pattern")


def fixed_part(path: str) -> str:
    return re.split("[%{]", path, maxsplit=1)[0]


def check_target(text: str) -> None:
    """Check a server as a node's policy names it: scheme, host, perhaps a port."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in NETWORK_SCHEMES or not rest.strip("/"):
        raise ValueError('expected an address, like "https://search.example:9200"')


def split_query(path: str) -> tuple[str, str]:
    """Return a lake path and its query, perhaps empty. In a local path ``?`` is a character."""
    if path.startswith(("/", "file:")):
        return path, ""
    uri, mark, query = path.partition("?")
    return uri, mark + query


def _compiled(text: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # [[:alpha:]] is fine in RE2
        return re.compile(text)
