"""``python -m flumeng.agent.dryrun.target_check``: tries the targets of a flow for its node. A
process of its own keeps sinks' libraries out of the node. Prints a JSON list of ``Tried``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from flumeng.agent.dryrun.targets import tried
from flumeng.agent.node.sink_paths import require_outside
from flumeng.config import Component, check_flow, policy
from flumeng.config.component import Declared
from flumeng.platform import logs, secrets
from flumeng.platform.errors import UserError

parser = argparse.ArgumentParser(prog="flumeng.agent.dryrun.target_check", description=__doc__)
parser.add_argument("--data", required=True, type=Path, help="the node's data directory")
parser.add_argument("--policy", type=Path, help="the file that limits flows on this node")


def main() -> int:
    given = parser.parse_args()
    logs.to_stderr("targets")
    try:
        allowed = policy.load(given.policy)
        spec = check_flow(sys.stdin.buffer.read().decode())
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    secrets.use(allowed.secrets)

    def require(part: Component[Declared]) -> None:
        allowed.require(part)
        require_outside(given.data, part)

    print(json.dumps([asdict(target) for target in tried(spec, require)]), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a target that does not answer may hold a thread
