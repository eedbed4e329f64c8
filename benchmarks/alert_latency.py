"""From the first bad step to the moment at which a receiver has taken the alert, for each kind of fault.

A server, jobs through the real client and agent, and a webhook of our own on a socket. Each round has a server of its
own, so that no alert waits behind those of the round before. *Confirmation* is until the server opened the incident:
what a detector needs to be sure. *Transport* is from there until the receiver answered.

    python benchmarks/alert_latency.py [--rounds 10] [--fault nan --fault death ...]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from parts.server_process import ServerProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.processes import Ranks
from support.waiting import wait_until

#: Fault of the job -> kinds of incidents that name it.
FAULTS = {
    "nan": ("nonfinite",),
    "spike": ("spike", "level_shift", "divergence"),
    "drift": ("divergence", "level_shift", "spike"),
    "slow": ("throughput", "straggler"),
    "death": ("process_death",),
    "hang": ("hang",),
}
#: A fault that alerted nobody by then is missed, seconds.
MISSED_S = 150
JOB = Path(__file__).parent / "parts" / "sick_job.py"


class Receiver(ThreadingHTTPServer):
    """Notes when each alert came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        #: Run and kind -> when it was taken, and the incident.
        self.taken: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}


class _Take(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        incident = body["incident"]
        self.server.taken.setdefault((incident["run_id"], incident["kind"]), (time.time(), incident))

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    """Print a row for each fault."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    given = parser.parse_args()
    faults = given.fault or list(FAULTS)
    found: dict[str, list[tuple[float, float]]] = {fault: [] for fault in faults}
    with Receiver() as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        for number in range(given.rounds):
            for fault, times in _round(receiver, faults, number).items():
                found[fault].append(times)
        receiver.shutdown()
    print(f"{'first bad step -> accepted, s':<32}{'found':>7}{'median':>9}{'p95':>9}{'confirm':>10}{'transport':>11}")
    for fault, times in found.items():
        if not times:
            print(f"{fault:<32}{0:>7}")
            continue
        whole = sorted(confirm + transport for confirm, transport in times)
        middle = len(whole) // 2
        at95 = whole[math.ceil(0.95 * len(whole)) - 1]
        confirm, transport = (sorted(part)[middle] for part in zip(*times, strict=True))
        print(f"{fault:<32}{len(times):>7}{whole[middle]:>9.2f}{at95:>9.2f}{confirm:>10.2f}{transport:>11.2f}")


def _round(receiver: Receiver, faults: list[str], number: int) -> dict[str, tuple[float, float]]:
    folder = Path(tempfile.mkdtemp(prefix="alert-latency-"))
    env = {
        "STABILITY_WEBHOOK_URL": f"http://127.0.0.1:{receiver.server_address[1]}/",
        "STABILITY_WEBHOOK_SECRET": "s3cret",
    }
    found = {}
    with ServerProcess(folder / "data", env) as server:
        jobs = {fault: _job(server.url, folder, fault, number) for fault in faults}
        try:
            for fault in faults:
                try:
                    found[fault] = _times(receiver, folder, fault, number)
                except AssertionError:
                    print(f"round {number}: {fault} alerted nobody within {MISSED_S} s", file=sys.stderr)
        finally:
            for job in jobs.values():
                job.__exit__(None, None, None)
    return found


def _job(url: str, folder: Path, fault: str, number: int) -> Ranks:
    spool = folder / f"{fault}-spool"
    arguments = [fault, str(folder / f"{fault}-bad")]
    # A node of its own: what breaks on one node is one message (alerting/storms.py).
    env = {"STABILITY_DRAIN_S": "1", "STABILITY_NODE": f"node-{fault}"}
    ranks = Ranks(str(JOB), arguments, url=url, folder=spool, run_id=f"{fault}-{number}", world_size=1, **env)
    ranks.__enter__()
    return ranks


def _times(receiver: Receiver, folder: Path, fault: str, number: int) -> tuple[float, float]:
    def taken() -> list[tuple[float, dict[str, Any]]]:
        return [at for kind in FAULTS[fault] if (at := receiver.taken.get((f"{fault}-{number}", kind))) is not None]

    wait_until(taken, MISSED_S / 3, f"the alert of {fault}")
    at, incident = min(taken(), key=lambda one: one[0])
    bad = float((folder / f"{fault}-bad").read_text())
    return incident["opened"] - bad, at - incident["opened"]


if __name__ == "__main__":
    main()
