"""Refusals of requests before a page or the API sees them."""

from __future__ import annotations

import math

from flumeng.platform.errors import FlumengError, NotAllowedError, UnavailableError


class LogInError(NotAllowedError):
    """The request proves no name, or its proof is no longer valid."""


class CrossSiteError(NotAllowedError):
    """Another site may have made the browser send the request."""


class MisdirectedError(NotAllowedError):
    """The request is for a host that the console is not, as after DNS rebinding."""


class TooManyError(UnavailableError):
    """Too many requests. ``seconds``: when to try again."""

    def __init__(self, sentence: str, seconds: float) -> None:
        super().__init__(f"{sentence}: try again in {math.ceil(seconds)} s")
        self.seconds = seconds


class BodyError(FlumengError):
    """The body of a request is too large, or takes too long."""


class TooLargeError(BodyError):
    """More bytes than a request may have."""


class TooSlowError(BodyError):
    """The sender takes too long."""


class LongHeadersError(FlumengError):
    """More bytes of headers than a request may have."""
