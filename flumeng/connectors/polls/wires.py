"""The connections of a client, which another thread can end in the middle of anything."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import make_headers, parse_url

from flumeng.config.client_tls import ClientTls
from flumeng.platform.errors import UserError

MOST_OPEN = 8


@dataclass(frozen=True)
class Trust:
    """Whom a client trusts, and what it shows of itself."""

    context: ssl.SSLContext

    @classmethod
    def of(cls, tls: ClientTls | None) -> Trust:
        """Raises UserError."""
        tls = tls or ClientTls()
        try:
            context = ssl.create_default_context(cafile=tls.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if tls.certificate is not None:
                context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:
            name = getattr(error, "filename", None) or tls.ca or tls.certificate
            raise UserError(f"tls: {name}: {error}") from error
        return cls(context)


class Wires:
    """Of each socket it has a twin, which ends the connection when it is shut, however far that
    one is: in a handshake, in a header, in a body."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._twins: list[socket.socket] = []
        self._managers: dict[tuple[Trust | None, str | None], urllib3.PoolManager] = {}
        self._shut = False

    def open(self) -> None:
        """There may be connections again."""
        self._shut = False

    def shut(self) -> None:
        """End all connections, and those that are just being made; from any thread."""
        self._shut = True
        self.drop()

    def manager(self, trust: Trust | None, proxy: str | None) -> urllib3.PoolManager:
        """Without ``trust`` for http:// only. Raises UserError."""
        if len(self._twins) > MOST_OPEN:
            self.drop()
        with self._lock:
            key = (trust, proxy)
            if key not in self._managers:
                self._managers[key] = self._new_manager(trust, proxy)
            return self._managers[key]

    def drop(self) -> None:
        """End all connections."""
        with self._lock:
            twins, self._twins = self._twins, []
            managers, self._managers = self._managers, {}
        for twin in twins:
            with suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)
            twin.close()
        for manager in managers.values():
            manager.clear()

    def _hold(self, connected: socket.socket) -> socket.socket:
        with self._lock:
            self._twins.append(connected.dup())
        if self._shut:
            self.drop()
        return connected

    def _new_manager(self, trust: Trust | None, proxy: str | None) -> urllib3.PoolManager:
        if proxy is None:
            manager = urllib3.PoolManager(maxsize=1, ssl_context=trust and trust.context)
        else:
            manager = _proxied(proxy, trust)
        manager.pool_classes_by_scheme = self._pool_classes()
        return manager

    def _pool_classes(self) -> dict[str, Any]:
        hold = self._hold

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return hold(super()._new_conn())

        class Secured(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return hold(super()._new_conn())

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecuredPool(HTTPSConnectionPool):
            ConnectionCls = Secured

        return {"http": PlainPool, "https": SecuredPool}


def _proxied(proxy: str, trust: Trust | None) -> urllib3.PoolManager:
    """Raises UserError, without the proxy's URL, which may have a password."""
    try:
        user = parse_url(proxy).auth
        headers = make_headers(proxy_basic_auth=user) if user else None
        return urllib3.ProxyManager(
            proxy, proxy_headers=headers, maxsize=1, ssl_context=trust and trust.context
        )
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        raise UserError(
            "the environment names a proxy that is no http:// or https:// URL"
        ) from error
