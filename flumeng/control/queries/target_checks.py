"""Checks a flow's targets before an apply: from a node, with its network, secrets and policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flumeng.config import FlowSpec
from flumeng.control.commands.local_files import collecting_hosts
from flumeng.control.queries import fan_out
from flumeng.control.queries.read_cache import ReadCache
from flumeng.control.zookeeper import ReadableStore
from flumeng.platform.errors import (
    CorruptError,
    FlumengError,
    NotAllowedError,
    UnavailableError,
    UserError,
)
from flumeng.platform.security.signing import signature
from zkschema import paths
from zkschema.records import LiveNode

CHECK_SECONDS = 130.0
"""Time limit of a request; a node ends a check after 120 s."""
MOST_ASKED = 3
"""The most nodes asked, one after another, until one answers."""

Ask = Callable[[str, str, str, str], Sequence[Mapping[str, Any]]]
"""Returns the results of the node process at an address for a flow, its text and signature."""


def ask_node(address: str, flow: str, text: str, signed: str) -> Sequence[Mapping[str, Any]]:
    with fan_out.client(address, CHECK_SECONDS) as client:
        return client.check_targets(flow, text, signed)


@dataclass(frozen=True)
class CheckedTarget:
    """The result for a target of a flow, from ``node``; see ``agent.dryrun.targets.Tried``."""

    flow: str
    node: str
    kind: str
    name: str
    state: str
    why: str

    def __str__(self) -> str:
        outcome = f"{self.state} from node {self.node}" + (f": {self.why}" if self.why else "")
        return f"flow {self.flow}: {self.kind} {self.name}: {outcome}"


class TargetsFailedError(FlumengError):
    """Some targets are unusable; ``refused``: these by flow, with reasons."""

    def __init__(self, failed: Sequence[CheckedTarget]) -> None:
        flows = dict.fromkeys(target.flow for target in failed)
        self.refused = {
            flow: "; ".join(str(check) for check in failed if check.flow == flow) for flow in flows
        }
        super().__init__("\n".join(["nothing was applied:", *map(str, failed)]))


def check_targets(store: ReadableStore, ask: Ask, spec: FlowSpec, text: str) -> list[CheckedTarget]:
    """Return the results of the first node that answers. Raises NotAllowedError without permission;
    if none answers, the first node's error, or UnavailableError without a node to ask."""
    signed = signature(spec.flow, text)
    trouble: list[FlumengError] = []
    for node, address in _candidates(store, spec):
        try:
            rows = ask(address, spec.flow, text, signed)
        except NotAllowedError:
            raise
        except (UnavailableError, CorruptError, UserError) as error:
            trouble.append(type(error)(f"node {node}: {error}"))
            if len(trouble) == MOST_ASKED:
                break
        else:
            fields = ("kind", "name", "state", "why")
            return [
                CheckedTarget(spec.flow, node, *(str(row.get(field, "")) for field in fields))
                for row in rows
            ]
    if trouble:
        raise trouble[0]
    raise UnavailableError(
        f"flow {spec.flow}: no live node may collect it, so none can check its targets: see "
        "`place.collect.labels` and `flumeng node list`"
    )


def _candidates(store: ReadableStore, spec: FlowSpec) -> Iterator[tuple[str, str]]:
    names = collecting_hosts(store, spec)
    lives = ReadCache.of(store).read_many([paths.live_node(name) for name in names])
    for name, live in zip(names, lives, strict=True):
        address = _address(live.value) if live is not None else ""
        if address:
            yield name, address


def _address(live: LiveNode) -> str:
    return next(filter(None, (*live.addresses, live.discovery)), "")
