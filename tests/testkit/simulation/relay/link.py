"""The wide link: it is cut, one-way, or loses, delays, repeats and reorders requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from flumeng.journal.serving.gateway_wire import FlowPositions, LeaseAnswer, LeaseRequest
from flumeng.platform.errors import ConflictError, FlumengError, UnavailableError
from tests.testkit.simulation.relay.gateway import Gateway
from zkschema.records import Site

T = TypeVar("T")
KEPT_REQUESTS = 30
PIECES = 3


class Link:
    """``cut``: nothing arrives. ``one_way``: requests arrive and answers do not. ``meanwhile`` lets
    others act. ``requests``: old ones, which may arrive again at any gateway."""

    def __init__(
        self, random: Random, gateways: Sequence[Gateway], meanwhile: Callable[[], None]
    ) -> None:
        self.cut = False
        self.one_way = False
        self.requests: list[LeaseRequest] = []
        self._random = random
        self._gateways = gateways
        self._meanwhile = meanwhile
        self._loses = random.choice((0.0, 0.03, 0.15))
        self._delays = random.choice((0.0, 0.05, 0.2))

    def calm_down(self) -> None:
        self.cut = self.one_way = False
        self._loses = self._delays = 0.0

    def ask(self, number: int, act: Callable[[Gateway], T]) -> T:
        """Return the answer of a gateway. Raises UnavailableError, and errors of the gateway."""
        gateway = self._gateways[number]
        if self._chance(self._delays):
            self._meanwhile()
        if self.cut or not gateway.answers or self._chance(self._loses):
            raise UnavailableError(f"{gateway.name} does not answer")
        try:
            answer = act(gateway)
        except ConflictError as error:  # as the wire translates it
            raise UnavailableError(str(error)) from error
        if self._chance(self._delays):
            self._meanwhile()
        if self.cut or self.one_way or not gateway.answers or self._chance(self._loses):
            raise UnavailableError(f"the answer of {gateway.name} is lost")
        return answer

    def repeat(self) -> str:
        """Deliver an old request again; its author gets no answer."""
        gateway = self._random.choice(self._gateways)
        if not self.requests or not gateway.answers:
            return ""
        request = self._random.choice(self.requests)
        try:
            gateway.lease(request)
        except FlumengError:
            return ""
        return f"{gateway.name} gets an old request again: {request.acks}"

    def order(self) -> list[int]:
        numbers = list(range(len(self._gateways)))
        self._random.shuffle(numbers)
        return numbers

    def keep(self, request: LeaseRequest) -> None:
        self.requests = [*self.requests[-KEPT_REQUESTS:], request]

    def piece(self, start: int, end: int) -> int:
        """Return where one answer of a read ends."""
        return min(end, start + self._random.randint(1, max(1, (end - start) // PIECES + 1)))

    def _chance(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


class LinkedGateways:
    """``Gateways`` of the source over the link: the first that answers."""

    def __init__(self, link: Link, here: str) -> None:
        self._link = link
        self._here = here
        self.addresses = ("gw:1",)

    def here(self) -> str:
        return self._here

    def site_record(self) -> Site:
        return Site(gateways=self.addresses)

    def positions(
        self, flow: str, seen: str = "", wait_seconds: float = 0.0, *, filtered: bool = False
    ) -> FlowPositions:
        del seen, wait_seconds, filtered
        return self._first(lambda gateway: gateway.positions(flow))

    def lease(self, request: LeaseRequest) -> LeaseAnswer:
        self._link.keep(request)
        return self._first(lambda gateway: gateway.lease(request))

    def read(self, journal: str, start: int, end: int) -> list[int]:
        """Return the seqs of the range, in pieces from any gateway. Raises as ``SiteReader``."""
        seqs: list[int] = []
        at = start
        while at < end:
            stop = self._link.piece(at, end)
            seqs += self._first(partial(Gateway.read, journal=journal, start=at, end=stop))
            at = stop
        return seqs

    def close(self) -> None:
        """Nothing is open."""

    def _first(self, act: Callable[[Gateway], T]) -> T:
        for number in self._link.order():
            try:
                return self._link.ask(number, act)
            except UnavailableError as error:
                trouble = error
        raise UnavailableError(f"no gateway answers: {trouble}")
