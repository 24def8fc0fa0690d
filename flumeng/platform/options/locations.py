"""Locations of lakes: one URI with connection parameters and references to credentials in its
query, never a secret. Any process whose host has the secrets can open one from a commit record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from flumeng.platform.options.option import Need, option
from flumeng.platform.options.patterns import check_lake_path, split_query


@dataclass(frozen=True)
class Credentials:
    """The sink's identity in its store, by reference. Missing parts are looked up as the store's
    own tools do: environment variables, files of the collector's user, the cloud's metadata
    service."""

    access_key: str | None = option(
        doc="S3: the id of the access key.", secret=True, example="${secret:lake-id}", default=None
    )
    secret_key: str | None = option(
        doc="S3: the key itself.", secret=True, example="${secret:lake-key}", default=None
    )
    session_token: str | None = option(
        doc="S3: the token of a key that expires.", secret=True, default=None
    )
    role: str | None = option(
        doc="S3: the role to assume, with the other credentials.",
        example='"arn:aws:iam::123456789012:role/lake"',
        default=None,
    )
    ca: str | None = option(
        doc="S3: a file with the certificates to trust, on each host that collects.",
        example="/etc/flumeng/ca.pem",
        default=None,
    )
    account_key: str | None = option(
        doc="Azure: the key of the storage account.", secret=True, default=None
    )
    sas_token: str | None = option(
        doc="Azure: a shared access signature.", secret=True, default=None
    )

    def problems(self) -> Iterable[tuple[str, str]]:
        if (self.access_key is None) != (self.secret_key is None):
            yield "", "expected both access_key and secret_key, or neither"
        if self.account_key and self.sas_token:
            yield "", "expected account_key or sas_token, not both"

    @property
    def given(self) -> dict[str, str]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}


NAMES = tuple(field.name for field in dataclasses.fields(Credentials))
STORES = {
    "s3": frozenset({"access_key", "secret_key", "session_token", "role", "ca"}),
    "abfs": frozenset({"account_key", "sas_token"}),
}
"""The credentials of each kind of store; other stores take none."""
TABLE_CREDENTIALS = STORES["s3"] - {"role", "ca"}
"""The credentials that the libraries of Delta and Iceberg take."""


def check_location(text: str) -> None:
    """Check a lake path; it must have no credentials, which all readers of the flow would see."""
    check_lake_path(text)
    uri, query = split_query(text)
    user, at, _ = uri.partition("://")[2].partition("/")[0].rpartition("@")
    named = sorted(parameters(query).keys() & {*NAMES, "role_arn"})
    if named or (at and ":" in user):
        raise ValueError("expected credentials in the option credentials, not in the URL")


class InStore:
    """Options of sinks whose ``path`` is a directory of a store or disk."""

    path: str
    shared: bool
    credentials: Credentials | None

    @property
    def location(self) -> str:
        """The target of the sink, with references to its credentials."""
        return located(self.path, self.credentials)

    @property
    def local_path(self) -> str:
        """The path if each host has a separate directory there, else empty."""
        return own_path(self.path, shared=self.shared)

    def needs(self) -> Iterator[Need]:
        yield "output", self.path


def own_path(path: str, *, shared: bool) -> str:
    return "" if shared or not path.startswith(("/", "file:")) else path


def shared_option() -> Any:
    return option(
        doc="A path without a host is the same directory on all hosts that collect the flow, such "
        "as a mounted NFS. A URL like `s3a://` always is.",
        default=False,
    )


def located(path: str, credentials: Credentials | None) -> str:
    if credentials is None:
        return path
    uri, query = split_query(path)
    return _joined(uri, {**parameters(query), **credentials.given})


def place_of(location: str) -> str:
    """Return the location without credentials, to compare locations."""
    uri, query = split_query(location)
    kept = {name: value for name, value in parameters(query).items() if name not in NAMES}
    return _joined(uri, kept) if len(kept) < len(parameters(query)) else location


def parameters(query: str) -> dict[str, str]:
    return dict(parse_qsl(query.removeprefix("?"), keep_blank_values=True))


def credential_problem(path: str, credentials: Credentials | None) -> str | None:
    if credentials is None:
        return None
    store = store_of(path)
    wrong = sorted(credentials.given.keys() - STORES.get(store, frozenset()))
    if not wrong:
        return None
    return f"{', '.join(wrong)}: not valid for {store or 'a path without a host'}"


def table_credential_problem(path: str, credentials: Credentials | None) -> str | None:
    """Like ``credential_problem``, for a table in the store."""
    given = credentials.given if credentials is not None else {}
    if wrong := sorted(given.keys() - TABLE_CREDENTIALS):
        return f"{', '.join(wrong)}: not supported for tables: use the collector's environment"
    return credential_problem(path, credentials)


def store_of(path: str) -> str:
    """Return the kind of store of a path or URL; empty for a path without a host."""
    scheme, separator, _ = path.partition("://")
    if not separator or scheme == "file":
        return ""
    return {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "gcs": "gs"}.get(scheme, scheme)


def _joined(uri: str, query: Mapping[str, str]) -> str:
    return f"{uri}?{urlencode(query, safe='${}:/')}" if query else uri
