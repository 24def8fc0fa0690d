"""The options of the filter ``redact``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flumeng.config.column_kinds import Columns, Kind, require_column
from flumeng.config.component import FilterOptions, for_entries
from flumeng.config.functions import BINARY, TEXT
from flumeng.filters.options.templates import is_attribute
from flumeng.filters.personal_data import FINDERS
from flumeng.platform.options.option import option
from flumeng.platform.options.patterns import check_search

MAX_GROWTH = 100
HASH_CHARACTERS = 32
MASK = "***"


def check_kind(text: str) -> None:
    if text not in FINDERS:
        raise ValueError(f"expected one of {', '.join(FINDERS)}")


@dataclass(frozen=True)
class Redact(FilterOptions):
    """Masks, hashes or removes personal data in columns: matching parts, or whole values."""

    implementation: ClassVar[str] = "flumeng.filters.redact:RedactFilter"

    columns: tuple[str, ...] = option(
        doc="The columns, each a text or `body`, or `attrs.KEY`.", minimum=1, example="[body]"
    )
    kinds: tuple[str, ...] = option(
        doc="The kinds of data to find: `email`, `ipv4`, `ipv6`, `card` (credit card numbers "
        "with a valid check digit). Without kinds and patterns, whole values are replaced.",
        check=check_kind,
        example="[email, card]",
        default=(),
    )
    patterns: tuple[str, ...] = option(
        doc="Further patterns to find, as regular expressions (RE2).",
        check=check_search,
        example="['session=[0-9a-f]+']",
        default=(),
    )
    mode: Literal["mask", "hash", "remove"] = option(
        doc="`mask` replaces by `***`, `hash` by 32 hexadecimal digits, the same for the same "
        "text, and `remove` by nothing.",
        default="mask",
    )
    secret: str | None = option(
        doc="For `hash`: the key of HMAC-SHA-256, at least 16 characters.",
        secret=True,
        example="${secret:pseudonyms}",
        default=None,
    )

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.mode == "hash" and self.secret is None:
            yield "", 'missing "secret": without a key, hashes can be reversed by guessing'
        if self.mode != "hash" and self.secret is not None:
            yield "secret", f"only mode hash takes this option, and the mode is {self.mode}"

    def behind(self, columns: Columns) -> Columns:
        result = dict(columns)

        def take(name: str) -> None:
            if not is_attribute(name, columns):
                result[name] = self._redacted(name, require_column(columns, name))

        for_entries(self.columns, take)
        return result

    def _redacted(self, name: str, kind: Kind) -> Kind:
        if kind.name not in (TEXT, BINARY):
            raise ValueError(f"the column {name} is a {kind.name}: expected a text")
        each = {"mask": len(MASK), "hash": HASH_CHARACTERS, "remove": 1}[self.mode]
        if kind.growth * each > MAX_GROWTH:
            times = kind.growth * each
            raise ValueError(f"the column {name} may become {times} times as large as the event")
        return Kind(kind.name, growth=kind.growth * each)
