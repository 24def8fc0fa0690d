"""When Python collects garbage."""

from __future__ import annotations

import gc
import subprocess
import sys

from flumeng.platform.garbage_collection import no_garbage_collection

LOCKS_ITSELF = """
import gc, threading
from flumeng.platform.garbage_collection import current_frames

end = threading.Event()
for _ in range(60):
    threading.Thread(target=end.wait, daemon=True).start()
gc.collect()
gc.disable()
circle = [threading.local()]
circle[0].value = circle
del circle
gc.set_threshold(gc.get_count()[0] + 20)
gc.enable()
print(len(current_frames()), gc.isenabled())
end.set()
"""


def test_frames_of_threads_are_available_while_garbage_waits() -> None:
    """A thread's local variables in it, for which CPython 3.11 wants the lock that it holds."""
    command = [sys.executable, "-c", LOCKS_ITSELF]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "61 True\n"


def test_nested_pause_of_garbage_collection_keeps_it_off() -> None:
    with no_garbage_collection():
        with no_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
