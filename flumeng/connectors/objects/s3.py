"""S3 and compatible stores through botocore: listing buckets, tagging objects. pyarrow lists only
whole directories without ETags; the Rust library object_store fails at keys with an empty name or a
line break. botocore finds credentials where AWS's tools do."""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flumeng.connectors.objects.globs import Scope
from flumeng.connectors.objects.options import MOST_TAGS
from flumeng.connectors.objects.pages import PAGE, Listed, Page, Request
from flumeng.control.snapshot.items import Item
from flumeng.platform import secrets
from flumeng.platform.errors import FlumengError, UnavailableError, UserError
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import (
    ATTEMPTS,
    CONNECT_SECONDS,
    S3_CREDENTIALS,
    S3_PARAMETERS,
    SILENT_SECONDS,
    revealed,
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
    from botocore.exceptions import ConnectionError as NotConnected
    from botocore.parsers import ResponseParserError
except ModuleNotFoundError as missing:
    raise UserError(
        "listing objects of S3 needs a package: pip install 'flumeng[objects]'"
    ) from missing

ASK_AT_ONCE = 8
_WORTH_WAITING = {408, 425, 429}
_TAGGING = "s3:GetObjectTagging and s3:PutObjectTagging"
_NOT_THERE = {"404", "NoSuchKey", "NoSuchVersion"}
_PASSING = (NotConnected, HTTPClientError, MetadataRetrievalError, ResponseParserError)
_REMEDY = {
    "NoSuchBucket": "create it, or correct the path",
    "AccessDenied": "allow {needs}, or correct the credentials",
    "InvalidAccessKeyId": "correct the credentials",
    "SignatureDoesNotMatch": "correct the credentials",
    "ExpiredToken": "renew the credentials",
}


class S3Tree:
    """A bucket; locations are ``head`` + key + ``tail``. Below ``**`` keys are listed without
    directories. Elsewhere a page has matching objects or directories, never both, in S3's order."""

    lasting = False

    def __init__(self, bucket: str, given: Mapping[str, str], head: str, tail: str) -> None:
        self._bucket = bucket
        self._head = head
        self._tail = tail
        if unknown := sorted(given.keys() - S3_PARAMETERS.keys() - S3_CREDENTIALS.keys()):
            raise UserError(f"{head}: unknown parameters: {', '.join(unknown)}")
        try:
            self._client = client(tuple(sorted(given.items())))
        except (BotoCoreError, ValueError, OSError) as error:
            raise UserError(f"{head}: {error}") from error

    def page(self, request: Request) -> Page:
        scope = request.scope
        answer = self._request(request)
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
                page.entries.append(self._listed(content))
            else:
                page.unnamed.append(ascii(self._head + key))
        for prefix in answer.get("CommonPrefixes", ()):
            key = prefix["Prefix"]
            below = scope.below(key[len(request.within) : -1])
            if below is None or not request.wants_below(key):
                continue
            if _has_location(key[:-1]):
                page.entries.append(request.into(below))
            else:
                page.unnamed.append(ascii(self._head + key))
        if answer.get("IsTruncated"):
            page.entries.append(request.going_on(answer["NextContinuationToken"]))
        return page

    def _request(self, request: Request) -> Any:
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
    """Return whether the key fits into a location, whose query begins at a question mark."""
    return "?" not in key and not {"", ".", ".."}.intersection(key.split("/"))


@lru_cache(maxsize=32)
def client(values: tuple[tuple[str, str], ...]) -> Any:
    """Return a client. ``values``: the location's query parameters, sorted, secrets resolved."""
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
        _assume(session, given["role"])
    return session.create_client("s3", endpoint_url=endpoint, verify=given.get("ca"))


def _assume(session: Any, role: str) -> None:
    own = session.get_credentials()
    if own is None:
        raise ValueError(f"expected credentials to assume the role {role}")
    fetcher = AssumeRoleCredentialFetcher(session.create_client, own, role)
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def explained(error: Exception, name: str, needs: str) -> FlumengError:
    """Return the error as UserError or UnavailableError. ``needs``: the required permissions."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        text = f"{name}: {error}"
        if 400 <= status < 500 and status not in _WORTH_WAITING:
            remedy = _REMEDY.get(code, "correct the path or the credentials")
            return UserError(f"{text}: {remedy.format(needs=needs)}")
        return UnavailableError(text)
    text = f"{name}: {error}"
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in text:
        return UserError(f"{text}: set credentials.ca to the server's authority")
    return (UnavailableError if isinstance(error, _PASSING) else UserError)(text)


def tag(location: str, item: Item, tags: Mapping[str, str]) -> None:
    """Add tags to the object, unless it is gone or rewritten. Idempotent. S3 cannot tag
    conditionally, so it is checked first, and exactly its version is tagged. Raises UserError,
    UnavailableError."""
    plain, query = split_query(location)
    bucket, _, key = plain.partition("://")[2].partition("/")
    try:
        s3 = client(tuple(sorted(revealed(query, secrets.resolve).items())))
        at = {"Bucket": bucket, "Key": key}
        head = s3.head_object(**at)
        if not _is_same(head, item):
            return
        if head.get("VersionId", "null") != "null":
            at["VersionId"] = head["VersionId"]
        before = {pair["Key"]: pair["Value"] for pair in s3.get_object_tagging(**at)["TagSet"]}
        after = {**before, **tags}
        if after == before:
            return
        if len(after) > MOST_TAGS:
            raise UserError(f"the object would have {len(after)} tags, and S3 allows {MOST_TAGS}")
        tagging = [{"Key": name, "Value": value} for name, value in after.items()]
        s3.put_object_tagging(**at, Tagging={"TagSet": tagging})
    except (ClientError, BotoCoreError, ResponseParserError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] in _NOT_THERE:
            return
        raise explained(error, plain, _TAGGING) from error


def _is_same(head: Mapping[str, Any], item: Item) -> bool:
    etag = head.get("ETag", "").strip('"')
    if item.tag and etag:
        return bool(etag == item.tag.strip('"'))
    same_time = abs(head["LastModified"].timestamp() - item.modified_us / 1e6) < 1
    return bool(same_time and head["ContentLength"] == item.size)
