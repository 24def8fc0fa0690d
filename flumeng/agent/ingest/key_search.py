"""Searches the keys of encrypted journals that this worker serves and no running flow opened. The
secret's name is in the journal, or in the text of a flow whose readers wait for the key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from flumeng.config import parse_flow
from flumeng.events.journal_names import flow_of
from flumeng.journal.log.contract import Log
from flumeng.journal.log.journal_cipher import JournalCipher
from flumeng.platform.errors import FlumengError
from flumeng.platform.trouble_log import TroubleLog

log = logging.getLogger(__name__)


class KeySearch:
    def __init__(self, journals: Callable[[], Mapping[str, Log]]) -> None:
        self._journals = journals
        self._texts: Mapping[str, str] = {}
        self._named: Mapping[str, tuple[str, ...]] = {}
        self._faults: dict[str, TroubleLog] = {}

    def set_texts(self, texts: Mapping[str, str]) -> None:
        if texts != self._texts:
            self._named = {flow: _references(flow, text) for flow, text in texts.items()}
            self._texts = texts

    def search(self) -> bool:
        """Try to resolve missing keys; secrets may be slow. Returns whether anything changed."""
        changed = False
        for name, journal in self._journals().items():
            cipher = journal.cipher
            if cipher.lacks_key and (journal.closed or cipher.problem):
                try:
                    changed |= _search(name, cipher, self._named.get(flow_of(name), ()))
                    if fault := self._faults.pop(name, None):
                        fault.end("journal %s: its key can be searched again", name)
                except Exception as error:
                    text = "journal %s: cannot search its key; retrying: %r"
                    fault = self._faults.setdefault(name, TroubleLog(log))
                    fault.log(logging.ERROR, text, name, error, cause=error)
        return changed


def _search(name: str, cipher: JournalCipher, named: tuple[str, ...]) -> bool:
    before = cipher.problem
    cipher.search(named)
    if cipher.problem and cipher.problem != before:
        log.error("journal %s: %s", name, cipher.problem)
    elif before and not cipher.problem:
        log.info("journal %s: its encryption key was found, and readers continue", name)
    return cipher.problem != before


def _references(flow: str, text: str) -> tuple[str, ...]:
    try:
        encryption = parse_flow(text).journal.encryption
    except FlumengError as error:
        log.error("flow %s: its text, which names its keys, is unreadable: %s", flow, error)
        return ()
    return encryption.references if encryption is not None else ()
