"""Posts what people press as Slack does where no socket is: as a signed form."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.parse
from typing import Any

import httpx

__all__ = ["SIGNING_SECRET", "post_signed"]

SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


def post_signed(address: str, payload: dict[str, Any], **changes: Any) -> httpx.Response:
    """Post a payload; ``changes``: timestamp, age_s, secret, body, signature instead of the right ones."""
    body = changes.get("body", "payload=" + urllib.parse.quote(json.dumps(payload)))
    timestamp = str(changes.get("timestamp", int(time.time()) - changes.get("age_s", 0)))
    secret = changes.get("secret", SIGNING_SECRET)
    mac = hmac.new(secret.encode(), f"v0:{timestamp}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": changes.get("signature", f"v0={mac}"),
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return httpx.post(address, content=body.encode(), headers=headers)
