"""An operator of a world: flows come, change and go, nodes are drained and taken back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from flumeng import operations
from flumeng.errors import ConflictError, UnavailableError, UserError
from flumeng.simulation.process import Process
from flumeng.simulation.session import Session

if TYPE_CHECKING:
    from flumeng.simulation.world import World

MOST_TASKS = 3
TEXT = """flow: {name}
sources: [{{syslog: {{listen: "127.0.0.1:5514"}}}}]
place: {{collect: {{tasks: {tasks}}}}}
sinks: [{{noop: {{}}}}]
"""
NOW = 0.0


class Operator(Process):
    """``flows`` are the names that it uses, again and again. It is always connected."""

    def __init__(self, world: World, flows: tuple[str, ...]) -> None:
        super().__init__(world, "operator")
        self.session = Session(world.ensemble, world.answering, self.name)
        self._flows = flows

    @property
    def ready(self) -> bool:
        return False

    def apply_first(self) -> None:
        for name in self._flows:
            self._do(partial(self.apply, name), f"applies {name}")

    def step(self) -> None:
        """One command, and whatever comes of it."""
        random = self.world.random
        flow = random.choice(self._flows)
        node = random.choice(self.world.drainable) if self.world.drainable else None
        verb = random.choice(
            ("apply", "apply", "pause", "resume", "resume", "stop", "delete", "drain", "undrain")
        )
        if verb == "apply":
            self._do(lambda: self.apply(flow), f"applies {flow}")
        elif verb == "delete":
            discard = random.random() < 0.3
            self._do(lambda: self.delete(flow, discard=discard), f"deletes {flow} {discard=}")
        elif verb in ("drain", "undrain"):
            if node is not None:
                desired = "draining" if verb == "drain" else "active"
                self._do(lambda: self.desire(node, desired), f"wants {node} {desired}")
        else:
            state = {"pause": "suspended", "resume": "running", "stop": "stopped"}[verb]
            self._do(lambda: self.set_state(flow, state), f"wants {flow} {state}")

    def apply(self, flow: str) -> None:
        assert self.session is not None
        text = TEXT.format(name=flow, tasks=self.world.random.randint(1, MOST_TASKS))
        operations.apply_flow(self.session, text, author="o", reason="", now=NOW)

    def set_state(self, flow: str, state: str) -> None:
        assert self.session is not None
        operations.set_flow_state(self.session, flow, state, author="o", reason="", now=NOW)

    def delete(self, flow: str, *, discard: bool) -> None:
        assert self.session is not None
        operations.delete_flow(self.session, flow, author="o", reason="", now=NOW, discard=discard)

    def desire(self, node: str, desired: str) -> None:
        assert self.session is not None
        operations.set_node_desired(self.session, node, desired, author="o", reason="", now=NOW)

    def _do(self, command: Callable[[], object], what: str) -> None:
        try:
            command()
        except (ConflictError, UserError, UnavailableError) as error:
            self.say(f"{what}: {type(error).__name__}: {error}")
        else:
            self.say(what)
