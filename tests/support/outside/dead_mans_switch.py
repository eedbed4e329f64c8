"""Those outside who are told: a watcher that waits for signs of life, as healthchecks.io does, and receivers."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

__all__ = ["Outside", "Sign"]


@dataclass(frozen=True)
class Sign:
    """A sign of life, or of none: ``what`` is ``""``, ``/start`` or ``/fail``; ``at``: monotonic seconds."""

    at: float
    what: str
    body: str


class Outside:
    """Runs on a socket while the context lasts, and answers 200.

    Its rule is that of healthchecks.io: a check is late when no sign of life came for a period and a grace time, and at
    once at ``/fail``. ``/start`` is no sign of life.

    Args:
        period_s, grace_s: of the check.

    Attributes:
        signs: of life, at ``/beat``. agent: texts that agents sent to ``/agent``, with their time.

    Source: https://healthchecks.io/docs/configuring_checks/ and https://healthchecks.io/docs/http_api/
    """

    def __init__(self, period_s: float, grace_s: float) -> None:
        self._patience_s = period_s + grace_s
        self.signs: list[Sign] = []
        self.agent: list[tuple[float, str]] = []
        self._told: dict[str, list[tuple[str, str]]] = {"hook": [], "slack": []}
        outside = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length).decode()
                if len(body.encode()) < length:
                    return  # who sent it was killed: it did not arrive
                outside._take(self.path, body, self.headers.get("Idempotency-Key", ""))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="outside")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def variables(self, every_s: float) -> dict[str, str]:
        """Return the environment of a server that tells everybody here."""
        return {
            "STABILITY_HEARTBEAT_URL": f"{self.url}/beat",
            "STABILITY_HEARTBEAT_STYLE": "healthchecks",
            "STABILITY_HEARTBEAT_S": f"{every_s:g}",
            "STABILITY_WEBHOOK_URL": f"{self.url}/hook",
            "STABILITY_WEBHOOK_SECRET": "secret",
            "STABILITY_SLACK_WEBHOOK_URL": f"{self.url}/our-slack",
        }

    def alarm_after(self, moment: float) -> float | None:
        """Return when the alarm was raised after a moment (both monotonic seconds), None where it is not, or not yet.

        Of what came before the moment only the newest good sign counts.
        """
        good = [sign.at for sign in self.signs if sign.at <= moment and sign.what == ""]
        assert good, "no sign of life came before"
        late_at = good[-1] + self._patience_s
        for sign in [sign for sign in self.signs if sign.at > moment]:
            if sign.at > late_at or sign.what == "/fail":
                return min(sign.at, late_at)
            if sign.what == "":
                late_at = sign.at + self._patience_s
        return late_at if time.monotonic() > late_at else None

    def good_signs(self, since: float, until: float) -> list[Sign]:
        """Return the signs of life between two moments, monotonic seconds."""
        return [sign for sign in self.signs if sign.what == "" and since < sign.at < until]

    def opened(self, receiver: str, title: str) -> Counter[str]:
        """Return how often each message that tells of an incident came, by its idempotency key (Slack: its text)."""
        return Counter(key for key, text in list(self._told[receiver]) if text == title)

    def _take(self, path: str, body: str, key: str) -> None:
        if path.startswith("/beat"):
            self.signs.append(Sign(time.monotonic(), path.removeprefix("/beat"), body))
        elif path == "/agent":
            self.agent.append((time.monotonic(), json.loads(body)["text"]))
        elif path == "/hook":
            said = json.loads(body)
            if said["type"] == "incident.opened":
                self._told["hook"].append((key, said["incident"]["title"]))
        elif path == "/our-slack":  # what Alertmanager sends goes elsewhere
            said = json.loads(body)
            # A message that opens: a sign of its severity, then the title alone.
            self._told["slack"].append((said["text"], said["blocks"][0]["text"]["text"].partition(": ")[2]))

    def __enter__(self) -> Outside:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
