"""Calls to the gateways of one site. Any of them answers; a dead one costs a reconnect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from flumeng.connectors.sites.credentials import proof_for
from flumeng.connectors.sites.handshakes import plain
from flumeng.control.zookeeper import Store
from flumeng.journal.serving import wire
from flumeng.journal.serving.client import JournalClient, OutOfTimeError
from flumeng.journal.serving.gateway_wire import (
    FiltersAnswer,
    FiltersRequest,
    FlowPositions,
    LeaseAnswer,
    LeaseRequest,
    PositionsRequest,
    understood,
)
from flumeng.journal.serving.proof import Proof
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.security.expiry import utc_now
from zkschema import paths
from zkschema.records import Site

ANSWER_SECONDS = 5.0
REREAD_SECONDS = 5.0

T = TypeVar("T")


class SilentError(UnavailableError):
    """No gateway answers, and one has let its time pass: it is not being restarted."""


class Gateways:
    """The gateways of a site, from ``/sites/SITE``. Thread-safe, but one call runs at a time.
    Calls raise UnavailableError when none answers, UserError when a person has to act."""

    def __init__(
        self,
        site: str,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._site = site
        self._store = store
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._lock = threading.Lock()
        self._record: Site | None = None
        self._read_at = float("-inf")
        self._first = ""
        self._client: JournalClient | None = None
        self._proof: Proof | None = None

    def positions(
        self, flow: str, seen: str = "", wait_seconds: float = 0.0, *, filtered: bool = False
    ) -> FlowPositions:
        request = PositionsRequest(flow, self.here(), seen, wait_seconds, filtered, self._site)
        return self._ask(wire.FLOW_POSITIONS, request, FlowPositions)

    def filters(self, flow: str, name: str = "") -> FiltersAnswer:
        """Return the flow's filters of that name, or the current ones."""
        return self._ask(wire.FLOW_FILTERS, FiltersRequest(flow, name), FiltersAnswer)

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        return self._ask(wire.LEASE, request, LeaseAnswer)

    def here(self) -> str:
        """Return this cluster's name. Raises UserError when it has none."""
        cluster = self._store.read(paths.cluster())
        if cluster is None or not cluster.value.site:
            raise UserError("this cluster has no name among sites: `flumeng site name NAME`")
        return cluster.value.site

    @property
    def addresses(self) -> tuple[str, ...]:
        """The gateways; the one that answered last comes first."""
        record = self.site_record()
        return tuple(sorted(record.gateways, key=lambda address: address != self._first))

    def proof(self) -> Proof | None:
        return proof_for(self._site, self.site_record())

    def close(self) -> None:
        with self._lock:
            self._drop()

    def site_record(self) -> Site:
        """Return the site, read every few seconds. Raises UserError for an unknown one."""
        if self._record is None or self._clock() - self._read_at >= REREAD_SECONDS:
            found = self._store.read(paths.site(self._site))
            if found is None:
                raise UserError(
                    f"there is no site {self._site} here: `flumeng site add {self._site}`"
                )
            self._record, self._read_at = found.value, self._clock()
        return self._record

    def _ask(self, action: str, request: object, kind: type[T]) -> T:
        body, proof = msgspec.json.encode(request), self.proof()
        failed: list[UnavailableError] = []
        with self._lock:
            if proof != self._proof:
                self._drop()
                self._proof = proof
            for address in self.addresses:
                if address != self._first or self._client is None:
                    self._drop()
                    self._client = JournalClient(address, self._answer_seconds, prove=lambda: proof)
                    self._first = address
                try:
                    answer = self._client.ask(action, body, lambda plain: understood(kind, plain))
                except UnavailableError as error:
                    self._drop()
                    failed.append(error)
                    continue
                self._require_site(address, answer)
                return answer
        causes = (plain(str(why), self._site, proof, utc_now()) for why in failed)
        sentence = f"no gateway of site {self._site} answers: {'; '.join(causes)}"
        if any(isinstance(why, OutOfTimeError) for why in failed):
            raise SilentError(sentence)
        raise UnavailableError(sentence)

    def _require_site(self, address: str, answer: object) -> None:
        site = getattr(answer, "site", "")
        if site != self._site:
            raise UserError(
                f"the gateway {address} is of site {site}, not {self._site}: correct its address "
                f"with `flumeng site add {self._site}`"
            )

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client, self._first = None, ""
