"""All actions by name."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.console.actions import clusters, dead_letters, flows
from flumeng.console.actions.action import Action
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import nearest

ACTIONS: Mapping[str, Action] = {
    action.name: action for action in (*flows.ACTIONS, *dead_letters.ACTIONS, *clusters.ACTIONS)
}
LEFT_OUT: Mapping[str, str] = {
    "node-cordon": "flumeng has no cordon: a node that gets no work is drained",
    "node-uncordon": "flumeng has no cordon: `flumeng node undrain`",
}
"""Names that others know, and why there is no such action."""


def action_named(name: str) -> Action:
    """Return the action. Raises UserError with the nearest name."""
    if name not in ACTIONS:
        why = LEFT_OUT.get(name) or nearest(name, ACTIONS)
        raise UserError(f'there is no action "{name}"; {why}')
    return ACTIONS[name]
