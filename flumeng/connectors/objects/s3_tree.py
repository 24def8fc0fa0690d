"""Buckets of S3 and of what speaks its protocol, page by page through botocore.

pyarrow gives a directory only as a whole, without ETags, and cannot begin behind a name; the Rust
library object_store fails at a key with an empty name or a line break, and so never lists what is
behind it. botocore looks for credentials where AWS's own tools do, as pyarrow does that reads them.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flumeng.connectors.objects.globs import Scope
from flumeng.connectors.objects.listed import Listed
from flumeng.connectors.objects.pages import PAGE, Page, Request
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.remote_store import (
    ATTEMPTS,
    CONNECT_SECONDS,
    S3_CREDENTIALS,
    S3_PARAMETERS,
    SILENT_SECONDS,
)

try:
    import botocore.session
    from botocore.config import Config
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        HTTPClientError,
        MetadataRetrievalError,
        SSLError,
    )
    from botocore.exceptions import (
        ConnectionError as NotConnected,
    )
    from botocore.parsers import ResponseParserError
except ModuleNotFoundError as missing:
    raise UserError(
        "listing objects of S3 needs a package: pip install 'flumeng[objects]'"
    ) from missing

ASK_AT_ONCE = 8
_WORTH_WAITING = {408, 425, 429}
_PASSING = (NotConnected, HTTPClientError, MetadataRetrievalError, ResponseParserError)
_REMEDY = {
    "NoSuchBucket": "create it, or mend the path",
    "AccessDenied": "allow {needs}, or mend the credentials",
    "InvalidAccessKeyId": "mend the credentials",
    "SignatureDoesNotMatch": "mend the credentials",
    "ExpiredToken": "renew the credentials",
}


class S3Tree:
    """Locations are ``head``, a key, and ``tail``. What may be at any depth is listed without its
    directories, 1,000 objects a request. Elsewhere a page has objects or directories that are
    meant, never both, each in the order of S3."""

    lasting = False

    def __init__(self, bucket: str, given: Mapping[str, str], head: str, tail: str) -> None:
        self._bucket = bucket
        self._head = head
        self._tail = tail
        if unknown := sorted(given.keys() - S3_PARAMETERS.keys() - S3_CREDENTIALS.keys()):
            raise UserError(f"{head}: unknown in the query: {', '.join(unknown)}")
        try:
            self._client = client(tuple(sorted(given.items())))
        except (BotoCoreError, ValueError, OSError) as error:
            raise UserError(f"{head}: {error}") from error

    def page(self, request: Request) -> Page:
        scope = request.scope
        answer = self._asked(request)
        page = Page()
        scopes: dict[str, Scope | None] = {"": scope}
        for content in answer.get("Contents", ()):
            key = content["Key"]
            if key.endswith("/") or not request.wants(key):
                continue
            directory, _, name = key[len(request.within) :].rpartition("/")
            if directory not in scopes:
                scopes[directory] = _down(scope, directory)
            inside = scopes[directory]
            if inside is None or not inside.takes(name):
                continue
            if _has_location(key):
                page.found.append(self._listed(content))
            else:
                page.unnamed.append(ascii(self._head + key))
        for prefix in answer.get("CommonPrefixes", ()):
            key = prefix["Prefix"]
            below = scope.below(key[len(request.within) : -1])
            if below is None or not request.wants_below(key):
                continue
            if _has_location(key[:-1]):
                page.found.append(request.into(below))
            else:
                page.unnamed.append(ascii(self._head + key))
        if answer.get("IsTruncated"):
            page.found.append(request.going_on(answer["NextContinuationToken"]))
        return page

    def _asked(self, request: Request) -> Any:
        within = request.within
        asked = {"Prefix": within + request.scope.start, "MaxKeys": PAGE}
        if not request.scope.deep:
            asked["Delimiter"] = "/"
        if request.token is not None:
            asked["ContinuationToken"] = request.token
        elif request.after.startswith(within) and request.scope.deep:
            asked["StartAfter"] = request.after
        elif request.first:
            asked["StartAfter"] = within + request.first
        try:
            return self._client.list_objects_v2(Bucket=self._bucket, **asked)
        except (ClientError, BotoCoreError, ResponseParserError) as error:
            raise explained(error, self._head.rstrip("/"), "s3:ListBucket") from error

    def _listed(self, content: Mapping[str, Any]) -> Listed:
        modified = content["LastModified"]
        seconds = calendar.timegm(modified.utctimetuple())
        return Listed(
            f"{self._head}{content['Key']}{self._tail}",
            content["Size"],
            seconds * 1_000_000 + modified.microsecond,
            content.get("ETag", "").strip('"'),
        )


def _down(scope: Scope, directories: str) -> Scope | None:
    inside: Scope | None = scope
    for name in directories.split("/"):
        if inside is None:
            break
        inside = inside.below(name)
    return inside


def _has_location(key: str) -> bool:
    """A question mark begins the query of a location, and a path has no empty names in it."""
    return "?" not in key and not {"", ".", ".."}.intersection(key.split("/"))


@lru_cache(maxsize=32)
def client(values: tuple[tuple[str, str], ...]) -> Any:
    """``values``: what the query of a location says, its secrets looked up, in order."""
    given = dict(values)
    endpoint = given.get("endpoint_override")
    if endpoint is not None and "://" not in endpoint:
        endpoint = f"{given.get('scheme', 'https')}://{endpoint}"
    session = botocore.session.Session()
    region = given.get("region") or session.get_config_variable("region") or "us-east-1"
    session.set_config_variable("region", region)
    session.set_default_client_config(
        Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=SILENT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=ASK_AT_ONCE,
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
    )
    if "access_key" in given:
        session.set_credentials(
            given["access_key"], given["secret_key"], given.get("session_token")
        )
    if "role" in given:
        _take_on(session, given["role"])
    return session.create_client("s3", endpoint_url=endpoint, verify=given.get("ca"))


def _take_on(session: Any, role: str) -> None:
    known = session.get_credentials()
    if known is None:
        raise ValueError(f"expected credentials with which to take on the role {role}")
    fetcher = AssumeRoleCredentialFetcher(session.create_client, known, role)
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def explained(error: Exception, name: str, needs: str) -> FlumengError:
    """Whether a person has to do something about it, or trying again may help. ``needs``: what the
    credentials have to be allowed."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        said = f"{name}: {error}"
        if 400 <= status < 500 and status not in _WORTH_WAITING:
            remedy = _REMEDY.get(code, "mend the path or the credentials")
            return UserError(f"{said}: {remedy.format(needs=needs)}")
        return UnavailableError(said)
    said = f"{name}: {error}"
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in said:
        return UserError(f"{said}: name the authority in credentials.ca")
    return (UnavailableError if isinstance(error, _PASSING) else UserError)(said)
