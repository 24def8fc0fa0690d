"""Finds personal data in texts: e-mail addresses, IP addresses, card numbers. A pattern of RE2
finds candidates in whole columns, in texts and bytes alike, and a check verifies each one where a
pattern cannot. At an unclear beginning or end the longer part is taken."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Check = Callable[[str], Iterator[tuple[int, int]]]
"""Yields the spans of personal data in a candidate, in order."""

_OF_NAME = r"[^\x00-\x22\x24\x26\x28-\x2a\x2c\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x7d\x7f]"
_OF_DOMAIN = r"[^\x00-\x2c\x2e\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]"
"""A character of a domain name: an ASCII letter, digit or hyphen, or any outside ASCII."""
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?<![0-9]){_OCTET}(?:\.{_OCTET}){{3}}(?![0-9])")
_IPV6 = re.compile(r"(?<![0-9A-Za-z_])[0-9A-Fa-f:]{2,45}(?:(?:\.[0-9]{1,3}){3})?")
_CARD = re.compile(
    r"(?<![0-9])(?:[0-9]{4}([ -]?)[0-9]{4}\1[0-9]{4}\1[0-9]{4}(?![0-9])"
    r"|[0-9]{4}([ -])[0-9]{6}\2[0-9]{4,5}(?![0-9])"
    r"|[0-9]{13,19}(?![0-9]))"
)


@dataclass(frozen=True)
class Finder:
    """Finds the matches of ``pattern`` or, with ``check``, the spans that it confirms in them."""

    pattern: str
    check: Check | None = None


def _ipv4(text: str) -> Iterator[tuple[int, int]]:
    for match in _IPV4.finditer(text):
        yield match.span()


def _ipv6(text: str) -> Iterator[tuple[int, int]]:
    for match in _IPV6.finditer(text):
        if text[match.end() : match.end() + 1].isalnum() or text.startswith("_", match.end()):
            continue
        for begin, end in _trimmed(match):
            if _is_ipv6(text[begin:end]):
                yield begin, end
                break


def _trimmed(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yield possible bounds of an address: with and without colons around it, and cut at a dot,
    after which a port may follow."""
    begin, end = match.span()
    text = match[0]
    before, behind = begin + text.startswith(":"), end - text.endswith(":")
    dotted = begin + text.find(".") if "." in text else end
    for first in dict.fromkeys((begin, before)):
        for last in dict.fromkeys((end, behind, dotted)):
            yield first, last


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return any(character.isdigit() or character in "abcdefABCDEF" for character in text)


def _cards(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while match := _CARD.search(text, position):
        right = _is_card(re.sub("[ -]", "", match[0]))
        position = match.end() if right else match.start() + 1
        if right:
            yield match.span()


def _is_card(digits: str) -> bool:
    """Whether a number has the Luhn check digit and issuer of a card (ISO/IEC 7812-1)."""
    doubled = [2 * int(digit) for digit in digits[-2::-2]]
    total = sum(map(int, digits[-1::-2])) + sum(number // 10 + number % 10 for number in doubled)
    return total % 10 == 0 and digits[0] in "23456"


FINDERS: Mapping[str, Finder] = {
    "email": Finder(rf"{_OF_NAME}+@{_OF_DOMAIN}+(?:\.{_OF_DOMAIN}+)+"),
    "ipv4": Finder(r"[0-9]+(?:\.[0-9]+){3,}", _ipv4),
    "ipv6": Finder(r"[0-9A-Za-z_.:]*(?:::|(?::[0-9A-Fa-f]{1,4}){6})[0-9A-Za-z_.:]*", _ipv6),
    "card": Finder(r"[0-9](?:[ -]?[0-9]){12,}", _cards),
}
