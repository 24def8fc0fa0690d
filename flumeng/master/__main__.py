"""``python -m flumeng.master HOSTS [SESSION_SECONDS]``: a master that ends with its parent."""

import sys

from flumeng.master.daemon import run
from flumeng.runtime import logs, parentage

logs.to_stderr("master")
parentage.die_with_parent()
run(sys.argv[1], session_seconds=float((sys.argv[2:] or ["10"])[0]))
