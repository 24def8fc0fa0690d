"""``python -m flumeng.agent.node``: a node that ends with its parent; used by standalone."""

import argparse
import sys
from pathlib import Path

from flumeng.agent.node.children import DEFAULT_LIMITS, Limits
from flumeng.agent.node.daemon import run
from flumeng.agent.node.settings import Settings
from flumeng.platform import logs, processes
from flumeng.platform.errors import UserError

parser = argparse.ArgumentParser()
parser.add_argument("--zk", required=True)
parser.add_argument("--data", required=True, type=Path)
parser.add_argument("--name", required=True)
parser.add_argument("--policy", type=Path)
parser.add_argument("--session-seconds", type=float, default=10.0)
parser.add_argument("--metrics-channel", type=int)
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--role", action="append", dest="roles")
parser.add_argument("--start-seconds", type=float, default=DEFAULT_LIMITS.start_seconds)
parser.add_argument("--silent-seconds", type=float, default=DEFAULT_LIMITS.silent_seconds)
given = parser.parse_args()

logs.to_stderr("node")
processes.die_with_parent()
try:
    run(
        Settings(
            name=given.name,
            data=given.data,
            hosts=given.zk,
            port=given.port,
            roles=tuple(given.roles or Settings.roles),
            session_seconds=given.session_seconds,
            policy=given.policy,
            metrics_channel=given.metrics_channel,
            warm_collector=False,  # no other node fails
            limits=Limits(given.start_seconds, given.silent_seconds),
        )
    )
except UserError as problem:
    sys.exit(str(problem))
