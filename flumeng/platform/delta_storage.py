"""Storage options of the library deltalake."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng.platform.options.locations import parameters, store_of
from flumeng.platform.options.patterns import split_query
from flumeng.platform.scrubbing import Secret

TIME_OUTS = {"connect_timeout": "5s", "timeout": "10s", "max_retries": "2", "retry_timeout": "20s"}
STORAGE = {
    "region": "AWS_REGION",
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def of(location: str, secrets: Mapping[str, Secret]) -> tuple[str, dict[str, str]]:
    """Return a table's URI and storage options for deltalake, from a location in pyarrow's form."""
    uri, query = split_query(location)
    if not (store := store_of(uri)):
        return uri.removeprefix("file://"), {}
    if store != "s3":
        return uri, dict(TIME_OUTS)
    given = parameters(query)
    storage = TIME_OUTS | {
        name: secrets.get(given[option], given[option])
        for option, name in STORAGE.items()
        if option in given
    }
    if "endpoint_override" in given:
        protocol = given.get("scheme", "https")
        storage["AWS_ENDPOINT_URL"] = f"{protocol}://{given['endpoint_override']}"
        storage["AWS_ALLOW_HTTP"] = str(protocol == "http").lower()
    return f"s3://{uri.partition('://')[2]}", storage
