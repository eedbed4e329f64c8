"""What people press, as Slack posts it to ``POST /api/v1/slack``: signed, fresh, and never twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec
from redis.exceptions import RedisError

from .parts import Parts
from .presses import Presses

#: A request older than this is refused, seconds, as Slack advises. Source:
#: https://docs.slack.dev/authentication/verifying-requests-from-slack
MAX_AGE_S = 300

__all__ = ["MAX_AGE_S", "SignedRequests"]


class SignedRequests:
    """Checks and answers one request.

    Args:
        secret: the app's signing secret.
    """

    def __init__(self, secret: str, presses: Presses, parts: Parts) -> None:
        self._secret = secret
        self._presses = presses
        self._parts = parts

    async def answer(self, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any] | None]:
        """Return the status and the JSON of the answer, None for an empty one."""
        signature = headers.get("x-slack-signature", "")
        if not self.signed(headers, body):
            self._parts.counts["requests_refused"] += 1
            return 401, None
        try:
            digest = hashlib.sha256(signature.encode()).hexdigest()
            if not await self._parts.threads.first_time(f"request:{digest}"):
                self._parts.counts["requests_refused"] += 1
                return 401, None  # a replay
        except (RedisError, OSError):
            return 503, None
        try:
            form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
            payload = msgspec.json.decode(form["payload"][0]) if "payload" in form else {}
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return 400, None
        return 200, await self._presses.take(payload)

    def signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether Slack signed this body, for this app, within the last five minutes."""
        timestamp, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        from slack_sdk.signature import Clock, SignatureVerifier

        if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 12 or not signature.isascii():
            return False  # the library takes numbers and letters for granted
        clock, parts = Clock(), self._parts
        clock.now = parts.clock  # type: ignore[method-assign]
        try:
            return SignatureVerifier(self._secret, clock).is_valid(body, timestamp, signature)
        except (ValueError, UnicodeDecodeError):
            return False
