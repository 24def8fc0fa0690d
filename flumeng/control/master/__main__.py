"""``python -m flumeng.control.master``: a master that ends with its parent; used by standalone."""

import argparse
import sys

from flumeng.control.master.daemon import run
from flumeng.platform import logs, processes
from flumeng.platform.errors import UserError

parser = argparse.ArgumentParser()
parser.add_argument("hosts")
parser.add_argument("session_seconds", nargs="?", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int)
given = parser.parse_args()

logs.to_stderr("master")
processes.die_with_parent()
try:
    run(given.hosts, session_seconds=given.session_seconds, metrics_channel=given.metrics_channel)
except UserError as problem:
    sys.exit(str(problem))
