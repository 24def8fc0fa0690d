"""``python -m flumeng.master HOSTS``: a master that ends with its parent."""

import sys

from flumeng import logs, parentage
from flumeng.master.daemon import run

logs.to_stderr("master")
parentage.die_with_parent()
run(sys.argv[1])
