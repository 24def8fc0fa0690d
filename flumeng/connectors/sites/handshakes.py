"""Sentences for failed connections to gateways: which certificate is refused, and why. TLS reports
only the gateway's faults; a gateway that refuses this subscriber closes the connection."""

from __future__ import annotations

from datetime import UTC, datetime

from flumeng.journal.serving.proof import Proof
from flumeng.platform.errors import UserError

_ISSUE = "issue it again there with `flumeng cluster secure issue subscriber`, and copy it"
_THEIRS = (
    (
        "certificate has expired",
        "the certificate of gateway {address} has expired by this host's clock, {now}: renew it at "
        "site {site} with `flumeng node enroll`, or correct the clock",
    ),
    (
        "certificate is not yet valid",
        "the certificate of gateway {address} is not valid yet by this host's clock, {now}: "
        "compare the clocks of both sites",
    ),
    (
        "is not in peer certificate",
        "the certificate of gateway {address} is for other names: add the site with one of them, "
        "or give this one to `flumeng node enroll --host`",
    ),
    (
        "certificate verify failed",
        "gateway {address} has a certificate of another authority than that in ca.pem of site "
        "{site}: correct the address, or copy the site's ca.pem",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "{address} speaks no TLS: correct the address, or add the site without `--authority`",
    ),
)
"""Texts of gRPC with their sentences; the first that fits."""
_UNREACHED = " does not answer: Failed to connect to remote host: "
_REFUSED = "Socket closed"
_CLOSED = (
    "gateway {address} closes each connection: it stops, or refuses this subscriber's certificate, "
    "since its host's clock is wrong or it has another authority"
)


def plain(why: str, site: str, proof: Proof | None, now: datetime) -> str:
    """Return the sentence for the failure ``why`` of a client, or ``why`` itself when it is of
    another kind. ``now``: this host's clock."""
    address = why.removeprefix("server ").partition(" ")[0]
    values = {"address": address, "site": site, "now": f"{now:%Y-%m-%d}"}
    for text, sentence in _THEIRS:
        if text in why:
            return sentence.format(**values)
    if _UNREACHED in why:
        return why.removeprefix("server ").replace(_UNREACHED, ": ")
    if proof is not None and _REFUSED in why:
        return _ours(proof, site, now) or _CLOSED.format(**values)
    return why


def _ours(proof: Proof, site: str, now: datetime) -> str:
    """Return the fault of this subscriber's certificate, if there is one."""
    from cryptography import x509  # noqa: PLC0415  20 MB that only a fault needs

    from flumeng.platform.security.cert_signatures import require_issued  # noqa: PLC0415  as above

    leaf, *above = x509.load_pem_x509_certificates(proof.certificate)
    mine = f"this subscriber's certificate for site {site}"
    if leaf.not_valid_after_utc < now:
        return f"{mine} expired at {_shown(leaf.not_valid_after_utc)}: {_ISSUE}"
    if leaf.not_valid_before_utc > now:
        return (
            f"{mine} is valid from {_shown(leaf.not_valid_before_utc)} on, but this host's clock "
            f"shows {now:%Y-%m-%d}: compare the clocks of both sites"
        )
    try:
        require_issued(leaf, above, proof.ca, now)
    except UserError:
        return f"{mine} is of another authority than its ca.pem: {_ISSUE}"
    return ""


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
