"""Why a server would not open the gateway, in words for people."""

from __future__ import annotations

import json

__all__ = ["refusal"]

#: Longest answer of a server that is repeated, characters.
MAX_CHARS = 500


def refusal(status: int, body: bytes | bytearray | None, url: str, *, has_key: bool) -> str:
    """Return what is wrong and what to do.

    Args:
        status: HTTP status of the handshake's answer.
        body: of that answer. A server of ours says in it why: key, host, or what the key may do.
        url: of the gateway.
        has_key: an API key was sent.
    """
    try:
        error = json.loads(body or b"")["error"]
        why = f"{error['message']}; {error['hint']}"[:MAX_CHARS]
    except (ValueError, TypeError, KeyError):
        what = "does not accept this API key" if has_key else "needs an API key and none is set"
        why = f"the server {what}; set STABILITY_API_KEY to one of `stabilityboard keys`"
        # 403 is also what a WebSocket to a path that is none gets.
        why += f", or {url} is not the agents' door: check STABILITY_URL" if status == 403 else ""
    return f"HTTP {status}: {why}"
