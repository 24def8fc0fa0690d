"""Tags of objects of S3: those that an object has stay, beside the ones that it is given.

S3 cannot be told to tag an object only as long as it is the same. So the object is looked at first;
in a bucket with versions just that version is tagged, whatever comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from flumeng.connectors.objects.options import MOST_TAGS
from flumeng.connectors.objects.s3_tree import client, explained
from flumeng.control.snapshot.items import Item
from flumeng.platform import secrets
from flumeng.platform.errors import UserError
from flumeng.platform.options.patterns import split_query
from flumeng.platform.remote_store import revealed

_NEEDS = "s3:GetObjectTagging and s3:PutObjectTagging"
_NOT_THERE = {"404", "NoSuchKey", "NoSuchVersion"}


def tag(location: str, item: Item, tags: Mapping[str, str]) -> None:
    """Gives the item these tags, any number of times, unless it is gone or was written anew.
    ``location``: the item's, with the references to its credentials. Raises UserError and
    UnavailableError."""
    place, query = split_query(location)
    bucket, _, key = place.partition("://")[2].partition("/")
    try:
        s3 = client(tuple(sorted(revealed(query, secrets.resolve).items())))
        at = {"Bucket": bucket, "Key": key}
        head = s3.head_object(**at)
        if not _is_it(head, item):
            return
        if head.get("VersionId", "null") != "null":
            at["VersionId"] = head["VersionId"]
        found = {one["Key"]: one["Value"] for one in s3.get_object_tagging(**at)["TagSet"]}
        wanted = {**found, **tags}
        if wanted == found:
            return
        if len(wanted) > MOST_TAGS:
            raise UserError(
                f"it would have {len(wanted)} tags, and S3 takes no more than {MOST_TAGS}"
            )
        tagging = [{"Key": name, "Value": value} for name, value in wanted.items()]
        s3.put_object_tagging(**at, Tagging={"TagSet": tagging})
    except (ClientError, BotoCoreError, ResponseParserError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] in _NOT_THERE:
            return
        raise explained(error, place, _NEEDS) from error


def _is_it(head: Mapping[str, Any], item: Item) -> bool:
    """Whether it is as it was listed."""
    etag = head.get("ETag", "").strip('"')
    if item.tag and etag:
        return bool(etag == item.tag.strip('"'))
    same_time = abs(head["LastModified"].timestamp() - item.modified_us / 1e6) < 1
    return bool(same_time and head["ContentLength"] == item.size)
