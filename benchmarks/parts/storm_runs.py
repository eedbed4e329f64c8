"""A run of one rank that breaks in five ways, over an agent's real connection."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import time
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from stabilityclient.wire import EventBlock, Frame, Health, Hello, PointsBlock, SourceInfo, Welcome
from stabilityclient.wire import decode_message as decode
from stabilityclient.wire import encode_message as encode

__all__ = ["StormRun"]

#: Steps before anything breaks, and seconds between two words of the agent.
WARM, HEALTH_S = 60, 2.0


class StormRun:
    """One run and its agent.

    Args:
        url: of the gateway.
        dies: its process is killed in the end; else the job raises a third alert, and its agent can get lost.
    """

    def __init__(self, url: str, run_id: str, project: str, node: str, *, dies: bool) -> None:
        self.run_id, self.project, self.node = run_id, project, node
        self._url, now = url, time.time()
        self._rank = SourceInfo(f"r0-{now}", 0, 1, 0, node, 100, now)
        self._agent = SourceInfo(f"a-{now}", None, 1, None, node, 99, now)
        self._seqs = {self._rank.source: 0, self._agent.source: 0}
        self._step = 0
        self._alive, self._last = True, self._dies if dies else self._alerts
        self._socket: ClientConnection
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Connect and log a healthy beginning."""
        await self._connect()
        await self._rows([2.0 + math.exp(-step / 20) for step in range(WARM)])

    async def breaks(self, seconds: float, chance: random.Random) -> None:
        """Break five times at random moments within so many seconds; the loss recovers right after that."""
        moments = sorted(chance.random() * seconds for _ in range(5))
        began = time.monotonic()
        for moment, work in zip(moments, (self._alerts, self._nan, self._gpu, self._alerts, self._last), strict=True):
            await asyncio.sleep(max(0.0, moment - (time.monotonic() - began)))
            await work()
        if self._alive:
            await self._rows([2.0] * WARM)

    async def cut(self) -> None:
        """Cut the connection without a word."""
        for task in self._tasks:
            task.cancel()
        self._socket.transport.abort()

    async def comes_back(self) -> None:
        """Connect again."""
        await self._connect()

    async def _connect(self) -> None:
        self._socket = await connect(self._url, compression=None, max_size=None, open_timeout=60)
        hello = Hello(
            self.run_id, self._agent.source, self.node, "0", project=self.project, name="",
            sources=[self._agent, self._rank],
        )  # fmt: skip
        await self._socket.send(encode(hello))
        assert isinstance(decode(await self._socket.recv(decode=False)), Welcome)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._say_healthy())]

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for _ in self._socket:
                pass

    async def _say_healthy(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                now = time.time()
                slot = {
                    "rank": 0, "source": self._rank.source, "pid": 100, "alive": self._alive, "state": "running",
                    "step": self._step, "step_start": now, "phase": "forward", "phase_start": now, "time": now,
                    "last_seq": self._seqs[self._rank.source], "beat": int(now), "pending": int(now), "dropped": 0,
                    "local_rank": 0, "world_size": 1,
                }  # fmt: skip
                await self._socket.send(encode(Health(self._agent.source, self.node, now, [slot], {"blind": []})))
                await asyncio.sleep(HEALTH_S)

    async def _alerts(self) -> None:
        await self._event(self._rank, "alert", {"title": f"Check at step {self._step}", "severity": "warning"})
        self._step += 1

    async def _nan(self) -> None:
        await self._rows([math.nan, math.nan, math.nan])

    async def _gpu(self) -> None:
        data = {
            "uuid": f"GPU-{self.run_id}", "index": 0, "bus_id": "00000000:18:00.0", "name": "NVIDIA H100 80GB HBM3",
            "ranks": [0], "what": "lost", "state": "on", "facts": {}, "text": "GPU 0 has fallen off the bus",
        }  # fmt: skip
        await self._event(self._agent, "gpu", data)

    async def _dies(self) -> None:
        self._alive = False
        data = {
            "source": self._rank.source, "rank": 0, "pid": 100, "last_phase": "forward", "cause": "oom_kill",
            "signal": 9, "signal_name": "SIGKILL", "how": "pidfd",
            "evidence": {"text": "The kernel killed it: out of memory.", "state": "running", "beat": 1},
        }  # fmt: skip
        await self._event(self._agent, "process_death", data)

    async def _rows(self, losses: list[float]) -> None:
        count = len(losses)
        steps = range(self._step, self._step + count)
        self._step += count
        block = PointsBlock(
            ["loss"], struct.pack(f"<{count}q", *steps), struct.pack(f"<{count}d", *[time.time()] * count),
            struct.pack(f"<{count}d", *losses),
        )  # fmt: skip
        await self._send(self._rank, block, count)

    async def _event(self, source: SourceInfo, kind: str, data: dict[str, Any]) -> None:
        await self._send(source, EventBlock(kind, time.time(), self._step, data), 1)

    async def _send(self, source: SourceInfo, block: PointsBlock | EventBlock, records: int) -> None:
        first = self._seqs[source.source] + 1
        self._seqs[source.source] += records
        await self._socket.send(encode(Frame(source, first, self._seqs[source.source], [block])))
