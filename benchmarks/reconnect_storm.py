"""What a server does when all agents of a cluster come back in one moment: handshakes refused, CPU, /healthz meanwhile.

    python benchmarks/reconnect_storm.py [--agents 500 1000 1500] [--json]

The agents of one run open their connections at the same time and say hello; none tries twice. Each has numbers of one
source to ask for. Returns 1 when a handshake was refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from parts.server_process import ServerProcess, usage
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from stabilityclient.wire import Hello, SourceInfo, Welcome, decode_message, encode_message

#: Longest time for one handshake, seconds: an agent gives up after it.
HANDSHAKE_S = 60.0


async def come_back(url: str, number: int, agents: int) -> tuple[ClientConnection | None, float]:
    """Return the connection of one agent, None where it was refused, and the seconds until it was welcome."""
    source = SourceInfo(f"r{number}-1", number, agents, 0, f"n{number}", 1, time.time(), 0)
    hello = Hello("storm", f"a{number}", source.node, "0", "bench", "", sources=[source])
    begin = time.monotonic()
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            socket = await connect(url, max_size=None, compression=None, open_timeout=None, ping_interval=None)
            await socket.send(encode_message(hello))
            welcome = decode_message(await socket.recv(decode=False))
    except (OSError, TimeoutError, WebSocketException):
        return None, time.monotonic() - begin
    return (socket if isinstance(welcome, Welcome) else None), time.monotonic() - begin


async def watch_health(url: str, stop: asyncio.Event, answers_ms: list[float]) -> None:
    """Ask /healthz again and again."""
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        while not stop.is_set():
            begin = time.perf_counter()
            await client.get("/healthz")
            answers_ms.append((time.perf_counter() - begin) * 1e3)
            await asyncio.sleep(0.05)


async def one_case(server: ServerProcess, agents: int) -> dict[str, Any]:
    """Return the figures of one number of agents."""
    url = f"ws://127.0.0.1:{server.port}/api/v1/agent"
    first, _ = await come_back(url, agents, agents)  # the run is known and followed before the storm
    stop, answers_ms = asyncio.Event(), [0.0]
    health = asyncio.create_task(watch_health(server.url, stop, answers_ms))
    before, begin = usage(server.pid), time.monotonic()
    found = await asyncio.gather(*(come_back(url, number, agents) for number in range(agents)))
    after, wall = usage(server.pid), time.monotonic() - begin
    stop.set()
    await health
    sockets = [socket for socket, _ in found if socket is not None]
    for socket in [*sockets, *([first] if first else [])]:
        socket.transport.abort()
    return {
        "agents": agents,
        "refused": agents - len(sockets),
        "all_back_s": round(wall, 1),
        "server_cpu_s": round(after.cpu_s - before.cpu_s, 2),
        "cpu_ms_an_agent": round(1e3 * (after.cpu_s - before.cpu_s) / agents, 2),
        "healthz_p50_ms": round(statistics.median(answers_ms)),
        "healthz_worst_ms": round(max(answers_ms)),
    }


def main() -> int:
    """Measure and print; return 1 where a handshake was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[500, 1000, 1500])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for agents in given.agents:
        with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data") as server:
            found.append(asyncio.run(one_case(server, agents)))
        if not given.json:
            print("  ".join(f"{name} {value}" for name, value in found[-1].items()), flush=True)
    if given.json:
        print(json.dumps(found))
    return int(any(one["refused"] for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
