"""The way to the server's gateway: where it is, how it is opened, and why a server would not open it."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from stabilityclient.wire import MAX_MESSAGE_BYTES

__all__ = ["CONNECT_TIMEOUT_S", "Door", "Refused", "agent_url", "refusal"]

#: Seconds for the connection and for the Welcome.
CONNECT_TIMEOUT_S = 10.0
#: Longest answer of a server that is repeated, characters.
MAX_CHARS = 500
_REFUSING = frozenset({401, 403})


class Refused(Exception):
    """The server will not take this run's data, now or in a moment: wrong key, wrong version."""


class Door:
    """The gateway of one server.

    Args:
        url: of the server. api_key: or None. log: takes a text where the key is not safe on its way.

    Attributes:
        url: of the gateway.
    """

    def __init__(self, url: str, api_key: str | None, log: Callable[[str], None]) -> None:
        self.url = agent_url(url)
        self._here = (urlsplit(self.url).hostname or "") in ("127.0.0.1", "localhost", "::1")
        if api_key and not self._here and self.url.startswith("ws:"):
            log(
                f"the API key goes to {self.url} in clear text: whoever is on the way can read it. Put TLS in front "
                "of the server and set STABILITY_URL to its https:// address"
            )
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def open(self) -> ClientConnection:
        """Return a new connection.

        Raises:
            Refused: the server does not take this key, or none.
            OSError, TimeoutError, websockets.WebSocketException: it can't be reached now.
        """
        try:
            return await connect(
                self.url,
                additional_headers=self._headers,
                compression=None,  # floats do not compress, and the training node's CPU has better to do
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=CONNECT_TIMEOUT_S,
                close_timeout=1,
                user_agent_header=None,
                proxy=None if self._here else True,
            )
        except websockets.InvalidStatus as error:
            status = error.response.status_code
            if status in _REFUSING:
                text = refusal(status, error.response.body, self.url, has_key=bool(self._headers))
                raise Refused(text) from error
            raise


def agent_url(url: str) -> str:
    """Return the WebSocket address of the gateway for a server's URL."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + "/api/v1/agent", "", ""))


def refusal(status: int, body: bytes | bytearray | None, url: str, *, has_key: bool) -> str:
    """Return the fault and the remedy.

    Args:
        status: HTTP status of the handshake's answer.
        body: of that answer. It has the reason: key, host, or permission of the key.
        url: of the gateway.
        has_key: an API key was sent.
    """
    try:
        error = json.loads(body or b"")["error"]
        why = f"{error['message']}; {error['hint']}"[:MAX_CHARS]
    except (ValueError, TypeError, KeyError):
        what = "does not accept this API key" if has_key else "needs an API key and none is set"
        why = f"the server {what}; set STABILITY_API_KEY to one of `stabilityboard keys`"
        # 403 is also the answer to a WebSocket at an unknown path.
        why += f", or {url} is not the agents' door: check STABILITY_URL" if status == 403 else ""
    return f"HTTP {status}: {why}"
