"""A receiver of HTTP messages with a thread of its own, for tests that share one."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

__all__ = ["ReceiverThread"]


class ReceiverThread:
    """Writes down what it gets while the context lasts, and answers 200."""

    def __init__(self) -> None:
        #: Path and body of each request.
        self.received: list[tuple[str, str]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                if len(body) < length:  # whoever sent it was killed
                    self.close_connection = True
                    return
                received.append((self.path, body.decode()))
                # PagerDuty's answer; Slack and webhooks are content with any.
                answer = b'{"status": "success", "message": "ok", "dedup_key": "x"}'
                self.send_response(202 if "pagerduty" in self.path else 200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def heard(self, path: str, *words: str) -> bool:
        """Return whether one message to a path that begins so had all these words."""
        return any(at.startswith(path) and all(word in body for word in words) for at, body in self.received)

    def __enter__(self) -> ReceiverThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
