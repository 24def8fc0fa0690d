"""Shared options, and ``KEY=VALUE`` words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from flumeng.platform.errors import UserError
from flumeng.platform.options.quantities import check_address

F = TypeVar("F", bound=Callable[..., Any])

zk_envvar = "FLUMENG_ZK"
optional_zk_option, zk_option = (
    click.option(
        "--zk",
        "hosts",
        envvar=zk_envvar,
        show_envvar=True,
        required=required,
        metavar="HOST:PORT[,HOST:PORT]/CHROOT",
        help="The cluster.",
    )
    for required in (False, True)
)
inventory_envvar = "FLUMENG_INVENTORY"
optional_inventory_option, inventory_option = (
    click.option(
        "--inventory",
        "inventory_directory",
        envvar=inventory_envvar,
        show_envvar=True,
        required=required,
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="The inventory: a directory with all sites and the content of each.",
    )
    for required in (False, True)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
revision_option = click.option(
    "--if-revision",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only if the flow is at this revision now (0: only if there is none).",
)
reason_option = click.option("--reason", default="", help="Why; kept in the audit.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only print the actions of masters; change nothing."
)
data_option = click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory for its state; created if absent.",
)
session_option = click.option(
    "--session-seconds",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    help="The session timeout, after which ZooKeeper counts this process as gone.",
)


def timeout_option(seconds: float) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait; then the exit code is 1.",
    )


class Address(click.ParamType[str]):
    """The type of an option: ``host:port`` to listen on."""

    name = "address"

    def convert(
        self, value: str, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        try:
            check_address(value)
        except ValueError as error:
            self.fail(str(error), param, context)
        return value


metrics_option = click.option(
    "--metrics",
    type=Address(),
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus, /healthz and /readyz there, without authentication.",
)

console_option = click.option(
    "--console",
    type=Address(),
    metavar="HOST:PORT",
    help="Serve the web console there too, as `flumeng console` does.",
)


def given(texts: Sequence[str], noun: str) -> dict[str, str]:
    """Parse ``KEY=VALUE`` words. Raises ``UserError`` with the noun for other words."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"{noun} is KEY=VALUE, not {text!r}")
        pairs[key] = value
    return pairs


def changes(texts: Sequence[str], noun: str) -> tuple[dict[str, str], list[str]]:
    """Return the pairs to set, and the keys to remove, written ``KEY-``. Raises ``UserError``."""
    removals = [text for text in texts if "=" not in text and text[1:].endswith("-")]
    pairs = given([text for text in texts if text not in removals], noun)
    taken = [text[:-1] for text in removals]
    both = sorted({*taken} & {*pairs})
    if both:
        raise UserError(f"{noun} cannot be set and removed at once: {both[0]}")
    return pairs, taken


def numbers(pairs: Mapping[str, str], noun: str) -> dict[str, float]:
    values = {}
    for key, text in pairs.items():
        try:
            values[key] = float(text)
        except ValueError as error:
            raise UserError(f"{noun} {key} is a number, not {text!r}") from error
        if not 0 < values[key] < math.inf:
            raise UserError(f"{noun} {key} is a finite number above 0, not {text}")
    return values
