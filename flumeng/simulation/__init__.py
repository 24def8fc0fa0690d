"""A cluster in one thread: the real masters, nodes and acks over a model of ZooKeeper, with every
fault that a seed can think of. Deterministic: no thread, no wall clock, no I/O.

``World(seed).run()`` raises ViolationError, with the story that led to it, when something that must
never happen has happened.
"""

from __future__ import annotations

from flumeng.simulation.cluster import Parts
from flumeng.simulation.ensemble import Ensemble
from flumeng.simulation.session import Calm, Session
from flumeng.simulation.stepped_master import SteppedMaster
from flumeng.simulation.story import ViolationError
from flumeng.simulation.world import World

__all__ = ["Calm", "Ensemble", "Parts", "Session", "SteppedMaster", "ViolationError", "World"]
