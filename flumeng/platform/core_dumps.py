"""Secrets and events in memory are not to get onto a disk by a crash.

The limit of the size of a core file is inherited by all that this process starts, also over
``exec``, so it covers the JVMs as well. ``PR_SET_DUMPABLE`` would end with ``exec``, and would give
a process's files in ``/proc`` (its descriptors, its environment) to root. What a
user's command may do is the user's matter: only the soft limit is changed.
"""

from __future__ import annotations

import resource


def forbid() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
