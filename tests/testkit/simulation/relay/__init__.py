"""Two sites and the link between them in one thread: the real leases, cursors, finders, discovery
tasks, acks and gaps over a model of everything else. All chance comes from the seed.

``World(seed).run()`` raises ViolationError, with the story that led to it.
"""

from __future__ import annotations

from tests.testkit.simulation.relay.parts import Parts
from tests.testkit.simulation.relay.world import World

__all__ = ["Parts", "World"]
