"""The options of each sink, a file for each kind of target.

Beside its options a class may say: ``exactly_once``, how it can deliver so (a class attribute or a
property; without it the sink cannot); ``numbered``, that it is given the number of each batch
however its flow delivers; ``cut_by_content``, that what it sends under one number depends on
what is in the events; ``makes_files``, that each batch makes files, so batches are to be large;
``one_row_an_event``, that several rows of an event become one; ``placed_by``, the columns that
decide where the target keeps an event (by default none); ``claims()`` and ``needs()``, what
only one sink of a flow may have, and what the policy of a node has to allow; ``local``, that its
``path`` is on the disk of whoever collects; ``in_driver``, that the driver of the collector writes
and not the executors alone; ``members``, the sinks of a group, each of which says all that for
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from flumeng.config.component import Component

ExactlyOnce = Literal["staged", "by event", "by batch"]
"""*staged*: written aside and shown by renames. *by event*: the same event twice leaves one. *by
batch*: the target remembers the number of the last batch that it took."""


def exactly_once(options: Any) -> ExactlyOnce | None:
    """In which way a sink of these options delivers exactly once; None: in none."""
    found: ExactlyOnce | None = getattr(options, "exactly_once", None)
    return found


def numbered(options: Any) -> bool:
    return getattr(options, "numbered", False)


def decided(options: Any, delivery: str) -> bool:
    """Whether a flow that delivers so decides about each batch before such a sink has it."""
    if numbered(options):
        return True
    return delivery == "exactly-once" and exactly_once(options) == "by batch"


def makes_files(options: Any) -> bool:
    return getattr(options, "makes_files", False)


def in_driver(options: Any) -> bool:
    return getattr(options, "in_driver", False)


def members(options: Any) -> tuple[Component, ...]:
    """The sinks of a group; any other sink has none."""
    found: tuple[Component, ...] = getattr(options, "members", ())
    return found


def one_row_an_event(options: Any) -> bool:
    return getattr(options, "one_row_an_event", False)


def placed_by(options: Any) -> tuple[str, ...]:
    """The columns that decide where in the target an event is: another value is another place."""
    found: tuple[str, ...] = getattr(options, "placed_by", ())
    return found
