"""When the flows with a range of tasks are looked at: each every 15 seconds, in one thread.

All are asked at once and waited for together, so that a flow whose servers do not answer costs the
others nothing; of that flow it is then unknown how far its partitions reach.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from flumeng.agent.discovery.accounts import PartitionAccounts
from flumeng.agent.discovery.scaler import Scaler
from flumeng.control.planner.scaling import SAMPLE_SECONDS
from flumeng.platform import vital
from flumeng.platform.errors import FlumengError

log = logging.getLogger(__name__)


class ScalingLoop:
    """``scalers`` gives those of the tasks that run now, by flow."""

    def __init__(
        self, scalers: Callable[[], Mapping[str, Scaler]], accounts: PartitionAccounts
    ) -> None:
        self._scalers = scalers
        self._accounts = accounts

    def start(self) -> None:
        vital.start("scaling", self._run)

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + SAMPLE_SECONDS, time.monotonic())
            time.sleep(due - time.monotonic())
            self.turn()

    def turn(self) -> None:
        """Each flow once; what fails of one is tried again with the next turn."""
        scalers = self._scalers()
        told = self._accounts.of_flows(scalers.keys())
        for flow, scaler in scalers.items():
            try:
                scaler.step(told.get(flow, {}))
            except FlumengError as error:
                log.debug("flow %s: the number of its tasks: %s", flow, error)
