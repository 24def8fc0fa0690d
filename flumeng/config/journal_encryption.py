"""How the events of a flow are kept from those who get hold of its nodes' disks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flumeng.platform.options.option import option


@dataclass(frozen=True, kw_only=True)
class JournalEncryption:
    """Events are encrypted in the files of the flow's journals (AES-256-GCM), and decrypted where a
    node sends them to those who read them. A key is 32 random bytes as hexadecimal digits or
    base64, as `openssl rand -hex 32` prints them.

    A flow with another `key` goes on in new journals; the old key has to be one of `previous_keys`
    until they are read, or the flow's sources stop. What is kept beside events, such as how far
    each file is read, is not encrypted.

    With `durability: replicated` events travel to their copies encrypted. A node needs the secrets
    in order to receive events of the flow, or to lead a journal in the place of a node that is
    gone; to hold a copy it needs none.
    """

    key: str = option(
        doc="The key for new events.", secret=True, example="${secret:journal-2026-11}"
    )
    previous_keys: tuple[str, ...] = option(
        doc="Keys of events that are not read yet.",
        secret=True,
        example='["${secret:journal-2026-05}"]',
        default=(),
    )

    @property
    def references(self) -> tuple[str, ...]:
        """To the secrets, each once; the first is for new events."""
        return tuple(dict.fromkeys((self.key, *self.previous_keys)))

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.key in self.previous_keys:
            yield "previous_keys", "expected other keys than `key`"
