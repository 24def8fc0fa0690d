"""Checks a flow's targets for an operator, in a child process with this node's network and secrets.
One check runs at a time; only texts that this node would run are checked."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from flumeng.config.policy import Policy
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.security.signing import is_signed

log = logging.getLogger(__name__)

CHECK_SECONDS = 120.0
TEXT_BYTES = 1 << 20
ERROR_CHARACTERS = 2000


class TargetChecks:
    """Runs checks of targets with this node's policy. Thread-safe."""

    def __init__(self, data: Path, policy_file: Path | None, allowed: Policy) -> None:
        self._command = [
            sys.executable,
            "-m",
            "flumeng.agent.dryrun.target_check",
            "--data",
            str(data),
        ]
        if policy_file is not None:
            self._command += ["--policy", str(policy_file)]
        self._signers = allowed.signers
        self._running = threading.Lock()

    def answer(self, request: bytes) -> list[dict[str, Any]]:
        """Check a flow's targets; returns rows as ``agent.dryrun.targets.Tried``. Raises UserError,
        and UnavailableError while another check runs or after the time limit."""
        flow, text, signature = _parsed(request)
        if self._signers and not is_signed(flow, text, signature, self._signers):
            raise UserError(
                f"the text of flow {flow} is not signed with a key of this node's policy file: set "
                "FLUMENG_SIGNING_KEY to the path of such a key"
            )
        if not self._running.acquire(blocking=False):
            raise UnavailableError("this node is checking the targets of another flow: try again")
        try:
            return self._run(flow, text)
        finally:
            self._running.release()

    def _run(self, flow: str, text: str) -> list[dict[str, Any]]:
        log.info(
            "contacting the sinks and Kafka brokers of flow %s once for an operator; this writes "
            "nothing to them",
            flow,
        )
        try:
            done = subprocess.run(
                self._command,
                input=text.encode(),
                capture_output=True,
                timeout=CHECK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"the target check did not end in {CHECK_SECONDS:g} s"
            ) from error
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip()
            raise UserError(f"the target check of flow {flow} failed: {why[-ERROR_CHARACTERS:]}")
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results


def _parsed(request: bytes) -> tuple[str, str, str]:
    """Return the flow, text and signature of a request. Raises UserError for an invalid one."""
    if len(request) > TEXT_BYTES:
        raise UserError(f"the text of a flow to check may have at most {TEXT_BYTES} bytes")
    try:
        asked = json.loads(request)
        flow, text, signature = asked["flow"], asked["text"], asked["signature"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"invalid target check: {error}") from error
    if not all(isinstance(value, str) for value in (flow, text, signature)):
        raise UserError("invalid target check: flow, text and signature must be strings")
    return flow, text, signature
