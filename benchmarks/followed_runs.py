"""How many runs one server process follows: requests refused, frames confirmed, Redis connections, CPU, memory.

    python benchmarks/followed_runs.py [--runs 500 1000 2000] [--kind live ended] [--seconds 20] [--every 10]
        [--metrics 4] [--json]

``live``: each run has an agent that says a row every ``--every`` seconds and its health as often; ``ms_a_row`` is what
the server, and Redis, spend for one, ticks and all. ``ended``: each run
sends its rows, says that it is done and leaves; all are then asked for once. In both cases single runs are asked for
during ``--seconds``. Returns 1 when a request or a handshake was refused, or a frame was not confirmed in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from parts.server_process import ServerProcess, usage
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from stabilityclient.wire import (
    Ack,
    Error,
    EventBlock,
    Frame,
    Health,
    Hello,
    PointsBlock,
    SourceInfo,
    Welcome,
    decode_message,
    encode_message,
)

#: Handshakes under way at once: a cluster's runs do not start in one moment (that is reconnect_storm.py).
AT_ONCE = 32
#: Rows of a run that ends.
ENDED_ROWS = 20


class Counts:
    """What the agents and readers of one case met."""

    def __init__(self) -> None:
        self.refused_handshakes = self.sent = self.confirmed = self.busy = 0
        self.answers: dict[int, int] = {}
        self.answer_ms: list[float] = []


class OneRun:
    """A run with one agent and one rank."""

    def __init__(self, number: int, url: str, counts: Counts, metrics: int) -> None:
        self.run_id = f"run-{number:05d}"
        self._names = ["loss", "grad_norm", "lr", "step_time_s", *(f"layer/{at}/norm" for at in range(metrics - 4))]
        self._url, self._counts = url, counts
        now = time.time()
        self._source = SourceInfo(f"r0-{number:x}-1", 0, 1, 0, f"n{number}", 1, now, 0)
        self._seq = self._confirmed = 0

    async def begin(self, gate: asyncio.Semaphore) -> ClientConnection | None:
        """Connect and say hello; None where that was refused."""
        try:
            async with gate:
                socket = await connect(self._url, max_size=None, compression=None, open_timeout=60)
                hello = Hello(self.run_id, "a1", self._source.node, "0", "bench", "", sources=[self._source])
                await socket.send(encode_message(hello))
                answer = decode_message(await socket.recv(decode=False))
                if not isinstance(answer, Welcome):
                    raise OSError(str(answer))
                return socket
        except (OSError, TimeoutError, WebSocketException):
            self._counts.refused_handshakes += 1
            return None

    async def send(self, socket: ClientConnection, block: PointsBlock | EventBlock) -> None:
        """Send one record as a frame of its own."""
        self._seq += 1
        self._counts.sent += 1
        await socket.send(encode_message(Frame(self._source, self._seq, self._seq, [block])))

    def row(self, step: int) -> PointsBlock:
        """Return a row."""
        values = (2.0 + 1 / (step + 1), 1.0, 1e-4, 0.5, *[1.0] * (len(self._names) - 4))
        packed = struct.pack(f"<{len(values)}d", *values)
        return PointsBlock(self._names, struct.pack("<q", step), struct.pack("<d", time.time()), packed)

    async def drain(self, socket: ClientConnection) -> None:
        """Read until all frames are confirmed."""
        while self._confirmed < self._seq:
            answer = decode_message(await socket.recv(decode=False))
            if isinstance(answer, Ack):
                self._counts.confirmed += answer.last_seq - self._confirmed
                self._confirmed = answer.last_seq
            elif isinstance(answer, Error):
                self._counts.busy += 1
                return

    async def end_well(self, gate: asyncio.Semaphore) -> None:
        """Send everything at once and leave."""
        socket = await self.begin(gate)
        if socket is None:
            return
        async with socket:
            await self.send(socket, EventBlock("start", time.time()))
            for step in range(ENDED_ROWS):
                await self.send(socket, self.row(step))
            await self.send(socket, EventBlock("finish", time.time()))
            await self.drain(socket)

    async def live(self, gate: asyncio.Semaphore, every_s: float, begun: asyncio.Event, stop: asyncio.Event) -> None:
        """Send a row and the health of the rank every now and then until ``stop``."""
        socket = await self.begin(gate)
        begun.set()
        if socket is None:
            return
        async with socket:
            step = 0
            await asyncio.sleep(every_s * (hash(self.run_id) % 1000) / 1000)
            while not stop.is_set():
                try:
                    await self.send(socket, self.row(step))
                    await self.drain(socket)
                    await socket.send(encode_message(self._health(step)))
                except (OSError, WebSocketException):
                    return
                step += 1
                try:
                    await asyncio.wait_for(stop.wait(), every_s)
                except TimeoutError:
                    continue

    def _health(self, step: int) -> Health:
        now = time.time()
        slot: dict[str, Any] = {"rank": 0, "source": self._source.source, "pid": 1, "alive": True, "state": "running"}
        slot |= {"step": step, "step_start": now, "phase": "forward", "phase_start": now, "beat": step, "world_size": 1}
        return Health("a1", self._source.node, now, [slot], {})


async def ask(url: str, run_ids: list[str], counts: Counts, seconds: float) -> None:
    """Ask for single runs, one after another."""
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        end, at = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            begin = time.perf_counter()
            answer = await client.get(f"/api/v1/runs/{run_ids[(at * 37) % len(run_ids)]}")
            counts.answer_ms.append((time.perf_counter() - begin) * 1e3)
            counts.answers[answer.status_code] = counts.answers.get(answer.status_code, 0) + 1
            at += 1
            await asyncio.sleep(0.1)


async def one_case(
    server: ServerProcess, runs: int, kind: str, seconds: float, every_s: float, metrics: int
) -> dict[str, Any]:
    """Return the figures of one number of runs."""
    counts, gate = Counts(), asyncio.Semaphore(AT_ONCE)
    url = f"ws://127.0.0.1:{server.port}/api/v1/agent"
    ours = [OneRun(number, url, counts, metrics) for number in range(runs)]
    run_ids = [one.run_id for one in ours]
    stop, tasks, idle = asyncio.Event(), [], usage(server.pid)
    if kind == "ended":
        await asyncio.gather(*(one.end_well(gate) for one in ours))
    else:
        begun = [asyncio.Event() for _ in ours]
        tasks = [
            asyncio.create_task(one.live(gate, every_s, event, stop)) for one, event in zip(ours, begun, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
    redis_pid, rows = server.redis_pid(), counts.confirmed
    before, redis_before, begin = usage(server.pid), usage(redis_pid), time.monotonic()
    began_cpu_s = before.cpu_s - idle.cpu_s
    await ask(server.url, run_ids, counts, seconds)
    after, redis_after, wall = usage(server.pid), usage(redis_pid), time.monotonic() - begin
    rows = counts.confirmed - rows
    with server.redis() as redis:
        clients: Any = redis.info("clients")
    stop.set()
    await asyncio.gather(*tasks)
    return {
        "kind": kind,
        "runs": runs,
        "refused_handshakes": counts.refused_handshakes,
        "sent": counts.sent,
        "confirmed": counts.confirmed,
        "busy": counts.busy,
        "requests": sum(counts.answers.values()),
        "refused_requests": sum(n for status, n in counts.answers.items() if status != 200),
        "request_p50_ms": round(statistics.median(counts.answer_ms), 1),
        "redis_connections": int(clients["connected_clients"]) - 1,
        "begin_cpu_ms_a_run": round(1e3 * began_cpu_s / runs, 1),
        "cpu_share": round((after.cpu_s - before.cpu_s) / wall, 3),
        "rows": rows,
        "ms_a_row": round(1e3 * (after.cpu_s - before.cpu_s) / rows, 3) if rows else None,
        "redis_ms_a_row": round(1e3 * (redis_after.cpu_s - redis_before.cpu_s) / rows, 3) if rows else None,
        "rss_mib": round(after.rss_mib),
    }


def main() -> int:
    """Measure and print; return 1 where somebody was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--kind", nargs="+", choices=("live", "ended"), default=["live", "ended"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two rows of a live run")
    parser.add_argument("--metrics", type=int, default=4, help="values of a live run's row, 4 or more")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for kind in given.kind:
        for runs in given.runs:
            with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data") as server:
                found.append(asyncio.run(one_case(server, runs, kind, given.seconds, given.every, given.metrics)))
            if not given.json:
                print("  ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    if given.json:
        print(json.dumps(found))
    return int(any(one["refused_handshakes"] or one["refused_requests"] or one["busy"] for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
