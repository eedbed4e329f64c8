"""Files and functions that a point, an incident and a rollback enter, in trainer, agent and server.

    python benchmarks/journeys.py [CHECKOUT ...] [--files]       one row a journey and checkout; default: this one

Real processes under ``sys.setprofile``: a trainer of one rank, its agent, ``stabilityboard up`` with its embedded
Redis, a live feed that is read, a Slack webhook. Counted are the product's functions that had not run in an idle window
of `IDLE_S` seconds before, in which the trainer waits. The way of counting is that of
a review of an earlier version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
from parts.server_process import free_port
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

HERE = Path(__file__).resolve().parent
IDLE_S = 4.0
#: Seconds after a journey's visible end that still belong to it: acknowledgements.
AFTER_S = 1.0
TIMEOUT_S = 30.0
WARM_ROWS = 400
ROLES = ("trainer", "agent", "server")
Entered = dict[str, set[tuple[str, str]]]


def interpreter(checkout: Path, folder: Path) -> str:
    """Make an environment with the packages of ``checkout``, our libraries and the probe; return its Python.

    An environment, since the agent's Python leaves out what the job's variables add.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = [checkout / name for name in ("client", "backend", "alerting", "frontend", "plugins")]
    paths = [*packages, HERE, HERE / "parts", *(path for path in sys.path if path.endswith("site-packages"))]
    [site] = folder.glob("lib/*/site-packages")
    (site / "journeys.pth").write_text("\n".join([*map(str, paths), "import journey_probe"]))
    return str(folder / "bin" / "python")


class Measured:
    """Processes of one checkout under the probe."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self._folder = folder
        self._posts: list[bytes] = []
        self._slack = HTTPServer(("127.0.0.1", 0), self._handler())
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._python = interpreter(checkout, folder / "venv")
        self._environ = os.environ | {
            "JOURNEY_DIR": str(folder),
            "STABILITY_URL": self.url,
            "STABILITY_DIR": str(folder / "spool"),
            "STABILITY_RUN_ID": "journeys",
            "STABILITY_SLACK_WEBHOOK_URL": f"http://127.0.0.1:{self._slack.server_port}/services/a",
            "STABILITY_SLACK_MIN_SEVERITY": "info",
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        posts = self._posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posts.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None: ...

        return Handler

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start everything, have the warm rows judged, end everything."""
        threading.Thread(target=self._slack.serve_forever, daemon=True).start()
        self.phase("start")
        (self._folder / "allowed").write_text(str(WARM_ROWS))
        up = [self._python, "-m", "stabilitybackend.cli", "up", "--port", str(self.port)]
        command = [*up, "--data-dir", str(self._folder / "data")]
        train = [self._python, str(HERE / "parts" / "journey_trainer.py")]
        with (self._folder / "log").open("w") as log:
            server = subprocess.Popen(command, env=self._environ, stdout=log, stderr=log)
            trainer = None
            try:
                self.until(lambda: httpx.get(f"{self.url}/healthz").status_code == 200)
                trainer = subprocess.Popen(
                    [*train, str(self._folder), str(WARM_ROWS)],
                    env=self._environ,
                    stdout=log,
                    stderr=log,
                )
                self.until(lambda: self.run()["last_step"] == WARM_ROWS)
                threading.Thread(target=self._browse, daemon=True).start()
                yield
            finally:
                (self._folder / "end").touch()
                if trainer is not None:
                    trainer.wait(TIMEOUT_S)
                server.terminate()
                server.wait(TIMEOUT_S)
                self._slack.shutdown()

    def _browse(self) -> None:
        with connect(self.url.replace("http", "ws") + "/api/v1/live", origin=self.url) as feed:  # type: ignore[arg-type]
            feed.send(json.dumps({"type": "subscribe", "run_id": "journeys", "cursor": None}))
            with suppress(ConnectionClosed):
                for _ in feed:
                    pass

    def run(self) -> dict[str, Any]:
        """Return the run as the API serves it."""
        return dict(httpx.get(f"{self.url}/api/v1/runs/journeys").json())

    def phase(self, name: str) -> None:
        """Begin a phase in all processes."""
        part = self._folder / "phase.part"
        part.write_text(name)
        part.replace(self._folder / "phase")
        time.sleep(0.2)

    def allow(self, rows: int) -> None:
        """Let the trainer log up to this step."""
        part = self._folder / "allowed.part"
        part.write_text(str(rows))
        part.replace(self._folder / "allowed")

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for a condition; a server that does not answer yet counts as false."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            try:
                if true():
                    return
            except (httpx.HTTPError, KeyError):
                pass
            time.sleep(0.05)
        raise SystemExit(f"nothing within {TIMEOUT_S:.0f} s: {(self._folder / 'log').read_text()[-2000:]}")

    def point(self) -> None:
        """One row, up to the live feed."""
        self.allow(WARM_ROWS + 1)
        time.sleep(AFTER_S)

    def incident(self) -> None:
        """Three rows of a spike, up to the message at the webhook."""
        self.allow(WARM_ROWS + 4)
        self.until(lambda: bool(self._posts))
        time.sleep(AFTER_S)

    def rollback(self) -> None:
        """An accepted rollback, up to the answer of the rank that it stops at a step."""
        path = f"{self.url}/api/v1/runs/journeys/commands"
        self.allow(10**6)
        answer = httpx.post(path, json={"kind": "rollback", "to_step": 300, "reason": "spike", "idempotency_key": "j"})
        if answer.status_code != 201:
            raise SystemExit(answer.text)
        self.until(lambda: self._ready(httpx.get(path).json()))

    def _ready(self, commands: Any) -> bool:
        listed = commands if isinstance(commands, list) else commands["commands"]
        return any(note["state"] == "ready" for each in listed for note in each["history"])

    def entered(self, phase: str) -> Entered:
        """Return (file, function) of a phase that is over, by role."""
        found: Entered = {role: set() for role in ROLES}
        for file in self._folder.glob(f"{phase}.*.json"):
            role, pairs = json.loads(file.read_text())
            found[role] |= {(path, name) for path, name in pairs}
        return found


def measure(checkout: Path) -> dict[str, Entered]:
    """Return what each journey enters beyond its idle window."""
    with tempfile.TemporaryDirectory(prefix="journeys-", ignore_cleanup_errors=True) as name:
        measured = Measured(checkout, Path(name))
        phases: dict[str, Entered] = {}
        with measured.running():
            for journey in ("point", "incident", "rollback"):
                measured.phase(f"idle-{journey}")
                time.sleep(IDLE_S)
                measured.phase(journey)
                getattr(measured, journey)()
            measured.phase("end")
            for journey in ("point", "incident", "rollback"):
                idle, busy = measured.entered(f"idle-{journey}"), measured.entered(journey)
                phases[journey] = {role: busy[role] - idle[role] for role in ROLES}
        return phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE.parent])
    parser.add_argument("--files", action="store_true", help="name the files")
    given = parser.parse_args()
    print("| checkout | journey | trainer | agent | server | files / functions together |\n|---|---|---|---|---|---|")
    for checkout in given.checkouts:
        for journey, entered in measure(checkout.resolve()).items():
            each = [f"{len({path for path, _ in entered[role]})}, {len(entered[role])}" for role in ROLES]
            together = set().union(*entered.values())
            files = {path for path, _ in together}
            total = sum(len(pairs) for pairs in entered.values())
            print(f"| {checkout.name} | {journey} | {' | '.join(each)} | **{len(files)} / {total}** |", flush=True)
            if given.files:
                print("\n".join(sorted(files)))


if __name__ == "__main__":
    main()
