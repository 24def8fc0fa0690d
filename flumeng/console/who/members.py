"""Rights of certificates, as the cluster's schema record has them now.

The console reads the record at most every READ_SECONDS, for all viewers together. While ZooKeeper
is away the last record counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509

from flumeng.console.who.refusals import LogInError
from flumeng.console.who.viewers import EVERYTHING, Rights, Role
from flumeng.control.zookeeper import Store
from flumeng.platform.errors import UnavailableError, UserError
from flumeng.platform.security.identity import Identity, identity_of
from flumeng.platform.security.roles import PEOPLE
from zkschema import paths
from zkschema.access import Secured

READ_SECONDS = 2.0


class Members:
    """Thread-safe. ``own``: the console's own identity, None in an open cluster. ``clock``: seconds
    since the epoch; ``monotonic``: seconds."""

    def __init__(
        self,
        store: Store,
        own: Identity | None,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._own = store, own
        self._clock, self._monotonic = clock, monotonic
        self._lock = threading.Lock()
        self._secured: Secured | None = None
        self._read_at = float("-inf")
        self._known = False

    @property
    def console_rights(self) -> Rights:
        """The rights of the console's own certificate: no viewer has more."""
        if self._own is None:
            return EVERYTHING
        return self._rights(self._own) if self._own.role in PEOPLE else Rights()  # a master's

    def viewer(self, certificate: bytes) -> tuple[str, Rights]:
        """Return the name and rights of the owner of a certificate (DER) that TLS has verified.
        Raises LogInError when it ended, or has no rights in this cluster."""
        try:
            identity, ends = _identity(certificate)
        except (UserError, ValueError) as error:
            raise LogInError(f"the certificate proves no name: {error}") from error
        if ends <= datetime.fromtimestamp(self._clock(), UTC):
            raise LogInError(f"the certificate of {identity} ended at {ends:%Y-%m-%d %H:%M} UTC")
        return str(identity), self._rights(identity)

    def _rights(self, identity: Identity) -> Rights:
        secured = self._current()
        cluster = secured.cluster if secured else self._own.cluster if self._own else ""
        if identity.cluster != cluster:
            raise LogInError(f"{identity} belongs to the cluster {identity.cluster}, not to this")
        if identity.role not in PEOPLE:
            raise LogInError(f"{identity} is no person: expected one of {', '.join(PEOPLE)}")
        role: Role = identity.role  # type: ignore[assignment]  # one of PEOPLE
        if secured is None or role != "operator":
            return Rights(role)
        member = secured.admitted.get(identity.member)
        if member is None or identity.member in secured.expelled:
            raise LogInError(
                f"{identity} is not admitted to this cluster: `flumeng schema secure --member "
                f"{identity.member}`"
            )
        return Rights(role, member.flows)

    def _current(self) -> Secured | None:
        with self._lock:
            now = self._monotonic()
            if now - self._read_at >= READ_SECONDS:
                self._read_at = now
                if self._known and not self._store.connected:
                    return self._secured
                try:
                    schema = self._store.read(paths.schema())
                    self._secured, self._known = Secured.of(schema.value if schema else None), True
                except UnavailableError:
                    if not self._known:
                        self._read_at = float("-inf")
                        raise
            return self._secured


@lru_cache(maxsize=1024)
def _identity(certificate: bytes) -> tuple[Identity, datetime]:
    leaf = x509.load_der_x509_certificate(certificate)
    return identity_of(leaf), leaf.not_valid_after_utc
