"""The options of each filter, a file for each.

Beside its options a class says ``behind(columns)``: which columns events have behind the filter
that have ``columns`` before it. It raises ValueError when they do not fit, and ``EntriesError``
when those are entries of a list. A class may say: ``looks_up``, that it looks things up in tables;
``needs()``, what the policy of a node has to allow; ``unconditional``, why it takes no ``when``;
``only_when(condition)``, the options that do the same under a condition, without which the filter
is run for the events that meet it: its implementation keeps columns that it does not know, or has
``under(condition)``, which gives the filter that does so; ``notes_errors``, that it says in
``attrs.parse_error`` why it could not process an event, which makes it take ``on_error``; it too
has to keep columns that it does not know; ``multiplies``, that several rows of an event leave it;
``regroups``, that its rows depend on where batches are cut; ``keeps_columns``, that events have the
same columns behind it as before it; ``makes()``, the columns that it adds, which under a condition
an earlier filter may have added too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flumeng.config.kinds import EVENT, Columns, either


class EntriesError(ValueError):
    """Entries of the filter's list that are wrong, by their number."""

    def __init__(self, errors: Mapping[int, ValueError]) -> None:
        super().__init__("; ".join(map(str, errors.values())))
        self.errors = errors


def behind(options: Any, columns: Columns, *, conditional: bool = False) -> Columns:
    """The columns of events behind the filter with these options; of those too that pass it by
    when it is ``conditional``. Raises ValueError."""
    if not conditional:
        found: Columns = options.behind(columns)
        return found
    again = made_again(options)
    given = {name: kind for name, kind in columns.items() if name not in again}
    return either(columns, options.behind(given))


def made_again(options: Any) -> frozenset[str]:
    """Columns that an earlier filter may have made too, under a condition. Raises ValueError."""
    makes = getattr(options, "makes", None)
    return frozenset() if makes is None else frozenset(makes().keys() - EVENT.keys())


def unconditional(options: Any) -> str | None:
    """Why the filter takes no ``when``; None when it does."""
    found: str | None = getattr(options, "unconditional", None)
    return found


def keeps_columns(options: Any) -> bool:
    """Whether events have the same columns behind the filter as before it."""
    return getattr(options, "keeps_columns", False)


def notes_errors(options: Any) -> bool:
    """Whether there are events that the filter cannot process."""
    return getattr(options, "notes_errors", False)


def reshapes(options: Any) -> bool:
    """Whether there are more rows, or fewer, than events behind the filter, and none is dropped."""
    return getattr(options, "multiplies", False) or getattr(options, "regroups", False)
