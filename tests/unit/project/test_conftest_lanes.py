"""How tests/conftest.py shares the tests among workers."""

from __future__ import annotations

from tests.conftest import LONG, SHARED, TOP, unit_of


def test_listed_test_files_and_shared_fixtures_exist() -> None:
    """A stale name would be passed over silently."""
    files = (TOP / "tests" / "live").glob("test_*.py")
    units = {unit_of(str(file.relative_to(TOP))) for file in files}
    assert set(LONG) <= units
    assert set(SHARED) <= set(LONG)
