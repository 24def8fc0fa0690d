"""How tests/conftest.py shares the tests among workers."""

from __future__ import annotations

from tests.conftest import LONG, SHARED, TOP, unit_of


def test_what_is_begun_with_and_what_is_shared_is_there() -> None:
    """A name that nothing has any more would be passed over in silence."""
    files = (TOP / "tests" / "live").glob("test_*.py")
    units = {unit_of(str(file.relative_to(TOP))) for file in files}
    assert set(LONG) <= units
    assert set(SHARED) <= set(LONG)
