"""Signed JSON by POST to any address."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

import msgspec

from .alert import Notice, Severity
from .errors import AlertingSettingsError
from .sink import HttpSink, Outgoing
from .variables import Variables

SIGNATURE_HEADER = "X-Stability-Signature"
IDEMPOTENCY_HEADER = "Idempotency-Key"
#: A receiver should refuse a signature older than this, seconds: it may be a replay.
MAX_SIGNATURE_AGE_S = 300

__all__ = ["IDEMPOTENCY_HEADER", "MAX_SIGNATURE_AGE_S", "SIGNATURE_HEADER", "WebhookSink", "sign", "verify"]


def sign(secret: str, body: bytes, timestamp: int) -> str:
    """Return the signature header for a body: ``t=<unix seconds>,v1=<hex HMAC-SHA256 of "t.body">``."""
    mac = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256)
    return f"t={timestamp},v1={mac.hexdigest()}"


def verify(secret: str, body: bytes, header: str, now: float, max_age_s: float = MAX_SIGNATURE_AGE_S) -> bool:
    """Return whether a signature header is right for a body and recent enough. Receivers may copy this function.

    Example:
        >>> header = sign("s3cret", b"{}", 1_000)
        >>> verify("s3cret", b"{}", header, now=1_100), verify("s3cret", b"{} ", header, now=1_100)
        (True, False)
    """
    try:
        timestamp = int(dict(part.split("=", 1) for part in header.split(","))["t"])
    except (ValueError, KeyError):
        return False
    right = hmac.compare_digest(sign(secret, body, timestamp).encode(), header.encode())
    return right and abs(now - timestamp) <= max_age_s


class WebhookSink(HttpSink):
    """Posts ``{"type", "id", "incident", "url"}``, signed, with an ``Idempotency-Key`` that every attempt repeats.

    A message whose fate a crash left open is sent again with the same key, by which the receiver recognizes it.

    Args:
        url: may hold a token, so it counts as a secret.
        secret: key of the signature.
        clock: unix seconds now, for the signature.
    """

    name = "webhook"
    idempotent = True

    def __init__(self, url: str, secret: str, clock: Callable[[], float], min_severity: Severity = "info") -> None:
        super().__init__(min_severity, [url, secret])
        self._url = url
        self._secret = secret
        self._clock = clock

    @classmethod
    def from_variables(cls, variables: Variables) -> WebhookSink | None:
        severity = variables.severity("STABILITY_WEBHOOK_MIN_SEVERITY")
        url = variables.url("STABILITY_WEBHOOK_URL")
        secret = variables.text("STABILITY_WEBHOOK_SECRET")
        if url is None:
            variables.need_nothing("STABILITY_WEBHOOK_URL", ["STABILITY_WEBHOOK_SECRET"])
            return None
        if secret is None:
            raise AlertingSettingsError(
                f"{variables.named('STABILITY_WEBHOOK_URL')} is set without "
                f"{variables.named('STABILITY_WEBHOOK_SECRET')}: "
                "set a secret of your own, the receiver checks the signature with it"
            )
        return cls(url, secret, time.time, severity)

    def outgoing(self, notice: Notice) -> Outgoing:
        body = msgspec.json.encode(notice.as_dict(), order="sorted")
        headers = {
            SIGNATURE_HEADER: sign(self._secret, body, int(self._clock())),
            IDEMPOTENCY_HEADER: notice.idempotency_key,
        }
        return Outgoing(self._url, body, headers)
