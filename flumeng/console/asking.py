"""How the console asks nodes, as functions of an address; tests replace them."""

from __future__ import annotations

from dataclasses import dataclass

from flumeng.control.queries import (
    acks,
    counters,
    fan_out,
    journals,
    lag,
    offset_lookup,
    target_checks,
)
from flumeng.control.queries.acks import Positions
from flumeng.control.queries.read_cache import ReadCache
from flumeng.journal.serving.account import Account


@dataclass(frozen=True)
class Asking:
    """The same functions as the CLI's. Each raises UnavailableError when a node is silent."""

    acks: acks.Ask = acks.ask_worker
    accounts: journals.Ask = journals.ask_worker
    replicas: journals.AskReplicas = journals.ask_replicas
    counters: counters.Ask = counters.ask_worker
    offsets: offset_lookup.Ask = offset_lookup.ask_discovery
    targets: target_checks.Ask = target_checks.ask_node


def ask_nodes(cache: ReadCache, ask: journals.Ask) -> tuple[Positions, dict[str, Account]]:
    """Return where all nodes have their journals, and the newest account of each journal."""
    accounts, silent = fan_out.ask_all(cache, ask)
    return Positions(accounts, silent), lag.newest(accounts)
