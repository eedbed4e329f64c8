"""uvicorn's HTTP/1.1 with bounds that it does not have: how large and how slow the head of a request may be.

Its parser keeps a head of any size in memory, and waits for its end without limit.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stabilitybackend.base.quiet_log import QuietLog

__all__ = ["BoundedHttpProtocol", "RubbishFilter"]

#: Longest first line and headers of a request together, bytes. The board's longest address, a chart of 24 metrics, has
#: 8,000; a cookie 43.
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
#: Seconds in which the head of a request has to be here, from the connection or its first byte on.
HEAD_TIMEOUT_S = 10.0


#: Log lines of uvicorn for each malformed request: a sender of rubbish could fill the disk with them.
_RUBBISH = ("Invalid HTTP request received.", "Unsupported upgrade request.")


class RubbishFilter(logging.Filter):
    """Lets one line a minute about requests that are none through, and counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._log = QuietLog(logging.getLogger(__name__))

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether uvicorn may log the record itself."""
        if record.msg not in _RUBBISH:
            return True
        self._log.log(logging.WARNING, str(record.msg))
        return False


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection; it ends without an answer when its head is late, and with 400 when it is too large."""

    _deadline: asyncio.TimerHandle | None = None
    _head_open = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # An empty line before a request counts too: with one a second a connection would live without end.
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        if self._head_open:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_open and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"the head of the request is larger than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._head_open, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._head_is_here()
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise ValueError("too much in the head")  # the parser answers 400
        super().on_headers_complete()

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._late)

    def _head_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
