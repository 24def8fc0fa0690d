"""A cluster in one thread: the real masters, nodes and acks over a model of ZooKeeper, with every
fault that a seed can think of. Deterministic: no thread, no wall clock, no I/O.

``World(seed).run()`` raises ViolationError, with the story that led to it, when something that must
never happen has happened.
"""

from __future__ import annotations

from tests.testkit.simulation.cluster import Parts
from tests.testkit.simulation.ensemble import Ensemble
from tests.testkit.simulation.session import Calm, Session
from tests.testkit.simulation.stepped_master import SteppedMaster
from tests.testkit.simulation.story import ViolationError
from tests.testkit.simulation.world import World

__all__ = ["Calm", "Ensemble", "Parts", "Session", "SteppedMaster", "ViolationError", "World"]
