"""The entries of a database for addresses, and a database file that changes, or is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from flumeng.config import SpecError, check_flow
from flumeng.filters.geoip import GeoipStage
from flumeng.platform.errors import UnavailableError

ATTRS = pa.map_(pa.string(), pa.string())
BERLIN = {
    "country": {"iso_code": "DE", "names": {"en": "Germany"}},
    "subdivisions": [{"iso_code": "BE"}],
    "location": {"latitude": 52.5, "metro": 7},
    "large": 2**80,
}
ADDED = pa.schema(
    [
        pa.field("country", pa.string()),
        pa.field("state", pa.string()),
        pa.field("latitude", pa.float64()),
        pa.field("metro", pa.int32()),
        pa.field("names", pa.map_(pa.string(), pa.string())),
        pa.field("large", pa.string()),
    ]
)
PATHS = (
    ("country", "iso_code"),
    ("subdivisions", "0", "iso_code"),
    ("location", "latitude"),
    ("location", "metro"),
    ("country", "names"),
    ("large",),
)


def write(path: Path, *, networks: str = "1.2.3.0/24 2001:db8::/32", version: int = 6) -> None:
    """Write as geoipupdate does: into a temporary file that is renamed."""
    writer = MMDBWriter(version, "Test", ipv4_compatible=version == 6)
    writer.insert_network(IPSet(networks.split()), BERLIN)
    writer.to_db_file(str(path.with_suffix(".new")))
    path.with_suffix(".new").rename(path)


def rows(path: Path, *addresses: str | None) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {
            "attrs": pa.array([[]] * len(addresses), ATTRS),
            "client": pa.array(addresses, pa.string()),
        }
    )
    (found,) = GeoipStage("client", str(path), PATHS, ADDED)(iter([batch]))
    found.validate(full=True)
    assert found.schema == pa.schema([*batch.schema, *ADDED])
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def test_addresses_get_the_values_of_their_network(tmp_path: Path) -> None:
    write(tmp_path / "city.mmdb")
    known = ["1.2.3.4", " 2001:db8::1 ", "::ffff:1.2.3.9", "1.2.3.4"]
    found = rows(tmp_path / "city.mmdb", *known, "9.9.9.9", None, "1.2.3.4:5", "")
    for row in found[:4]:
        assert {name: row[name] for name in ADDED.names} == {
            "country": "DE",
            "state": "BE",
            "latitude": 52.5,
            "metro": 7,
            "names": [("en", "Germany")],
            "large": str(2**80),
        }
    assert all(row[name] is None for row in found[4:] for name in ADDED.names)
    error = [("parse_error", "geoip: client is no address")]
    assert [row["attrs"] for row in found] == [*[[]] * 6, error, error]


def test_ipv4_database_finds_no_ipv6(tmp_path: Path) -> None:
    write(tmp_path / "v4.mmdb", networks="1.2.3.0/24", version=4)
    found = rows(tmp_path / "v4.mmdb", "1.2.3.4", "2001:db8::1")
    assert [(row["country"], row["attrs"]) for row in found] == [("DE", []), (None, [])]


def test_new_geoip_file_is_loaded_and_damaged_one_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "city.mmdb"
    with pytest.raises(UnavailableError, match="cannot read"):
        rows(path, "1.2.3.4")
    path.write_text("no database")
    with pytest.raises(UnavailableError, match="valid MaxMind"):
        rows(path, "1.2.3.4")
    write(path)
    assert rows(path, "1.2.3.4")[0]["country"] == "DE"
    write(path, networks="9.9.9.0/24")
    assert [row["country"] for row in rows(path, "1.2.3.4", "9.9.9.9")] == [None, "DE"]
    (tmp_path / "other").write_text("no database")
    (tmp_path / "other").rename(path)
    assert rows(path, "9.9.9.9")[0]["country"] == "DE"
    path.unlink()
    assert rows(path, "9.9.9.9")[0]["country"] == "DE"
    assert caplog.text.count("still using its old version") == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('{country: country.iso_code, at: "location.latitude DOUBLE"}', ""),
        ("{}", "expected at least one column"),
        ("{host: country.iso_code}", "there is a column host already"),
        ('{at: "location.latitude FROG"}', "fields: "),
    ],
)
def test_invalid_fields_are_reported(fields: str, message: str) -> None:
    text = (
        "flow: f\nsources: [tail: {paths: [/a]}]\nfilters:\n"
        f"  - geoip: {{column: host, database: /a.mmdb, fields: {fields}}}\n"
        "sinks: [noop]\n"
    )
    try:
        spec = check_flow(text)
        assert list(spec.filters[0].options.needs()) == [("path", "/a.mmdb")]
    except SpecError as error:
        assert message and message in str(error)
    else:
        assert not message
