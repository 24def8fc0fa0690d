"""Numbers with units."""

from __future__ import annotations

import pytest

from flumeng.platform.options.quantities import check_address, duration, size, whole_number


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("0", 0), ("1", 1), ("1_000", 1000), ("1 MiB", 2**20), ("1MB", 10**6), ("1.5 KiB", 1536),
     ("2 gib", 2**31), (" 3 B ", 3)],
)  # fmt: skip
def test_sizes_are_read(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("250 ms", 0.25), ("10us", 1e-5), ("2 min", 120.0),
     ("1 hour", 3600.0), ("1.5 d", 129600.0)],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "+1", "1 x", "ms", "1e3", "0x10", "\uff11", "nan", "1 2"]
)
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        size(text)
    with pytest.raises(ValueError, match="expected a duration"):
        duration(text)


@pytest.mark.parametrize("text", ["", "1.0", "one", "1 000", "\uff11"])
def test_whole_numbers_are_whole(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        whole_number(text)


def test_an_address_has_a_host_and_a_port() -> None:
    for address in ("0.0.0.0:0", "[::1]:65535", "logs.example.org:514"):
        check_address(address)
    for wrong in ("", ":1", "a", "a:", "a:65536", "[a]:1", "1.2.3:4", "a b:1", "-a:1"):
        with pytest.raises(ValueError, match="expected"):
            check_address(wrong)
