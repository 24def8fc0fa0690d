"""Proves to masters that the node's session is its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flumeng.platform.errors import UserError
from flumeng.platform.security import process
from flumeng.platform.security.credentials import Credentials, keystore_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionProof:
    """See ``LiveNode``; empty in an open cluster."""

    certificates: str = ""
    signature: str = ""


class SessionProofs:
    """A proof for each session and certificate."""

    def __init__(self) -> None:
        self._keystore = keystore_of("node")
        self._made: tuple[Credentials, int, SessionProof] | None = None

    def of(self, session: int) -> SessionProof:
        """Raises UserError while there has been no usable certificate."""
        if self._keystore is None:
            return SessionProof()
        try:
            credentials = process.loaded.of(self._keystore)
        except UserError as error:
            if self._made is None:
                raise
            log.debug("the certificate is to be read again: %s", error)
            credentials = self._made[0]
        if self._made is None or self._made[:2] != (credentials, session):
            from flumeng.platform.security import sessions  # noqa: PLC0415  needless in an open cluster

            signature = sessions.signature(credentials, session)
            proof = SessionProof(credentials.certificate.decode(), signature)
            self._made = credentials, session, proof
        return self._made[2]
