"""The agent of one node of a simulated job: what it says of eight ranks and eight GPUs, over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import math
import struct
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from stabilityclient.node_frames import together
from stabilityclient.wire import (
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

if TYPE_CHECKING:
    from simulated_job import SimulatedJob

__all__ = ["GPUS_PER_NODE", "GPU_EVERY_S", "STEP_S", "SimulatedAgent"]

GPUS_PER_NODE = 8
#: Usual seconds of a step; the phases' shares of it.
STEP_S = 1.0
PHASES = (("data", 0.06), ("forward", 0.3), ("backward", 0.5), ("optimizer", 0.14))
#: Seconds between two readings of the GPUs.
GPU_EVERY_S = 10.0
#: Pause before a lost connection is opened again, seconds.
RECONNECT_S = 1.0
GIB = 1024


class SimulatedAgent:
    """The agent of one node."""

    def __init__(self, job: SimulatedJob, node: int) -> None:
        self.job, self.node, self.name = job, node, job.node_name(node)
        self.beats: dict[int, int] = {}
        self.source = SourceInfo(
            f"a{int(job.started * 1e9):x}-{1000 + node}", None, job.ranks, None, self.name, 1000 + node, job.started
        )
        start = f"{int(job.started * 1e9):x}"
        #: Rank 0, whose loss this agent sends too if it is the first one.
        self.rank = SourceInfo(f"r0-{start}-20000", 0, job.ranks, 0, self.name, 20000, job.started)
        self.ranks = [self.rank] if node == 0 else []
        if job.row_metrics:
            self.ranks = [
                SourceInfo(f"r{rank}-{start}-{20000 + rank}", rank, job.ranks, at, self.name, 20000 + rank, job.started)
                for at, rank in enumerate(job.ranks_of(node))
            ]
        self.seqs = {source.source: 0 for source in (self.source, *self.ranks)}
        #: Ranks are never at one point of a step in one moment.
        self.late_s = [0.1 * job.random.random() for _ in job.ranks_of(node)]
        self.logged = 0
        self.said_dead: set[int] = set()
        self.said_lost: set[int] = set()
        self.said_hot: set[int] = set()

    async def run(self, stop: asyncio.Event, gate: asyncio.Semaphore) -> None:
        """Speak until ``stop``, over a new connection whenever one is lost."""
        while not stop.is_set():
            try:
                async with gate:
                    socket = await connect(self.job.url, max_size=None, compression=None, open_timeout=60)
                async with socket:
                    await self._speak(socket, stop)
            except (OSError, TimeoutError, ConnectionClosed):
                await _pause(stop, RECONNECT_S)

    async def _speak(self, socket: ClientConnection, stop: asyncio.Event) -> None:
        job = self.job
        sources = [self.source, *self.ranks]
        hello = Hello(job.run_id, self.source.source, self.name, "0", "bench", "", sources=sources)
        await socket.send(encode_message(hello))
        welcome = decode_message(await socket.recv(decode=False))
        assert isinstance(welcome, Welcome)
        self.seqs.update(welcome.last_seq)
        reader = asyncio.create_task(_drop(socket))
        try:
            await self._first_words(socket)
            # Agents of a real job do not speak at one moment.
            await _pause(stop, job.random.random() * job.health_s)
            gpus_due = 0.0
            while not stop.is_set():
                if self.node not in job.trouble.silent:
                    await socket.send(encode_message(self._health()))
                    await self._deaths(socket)
                    await self._loss(socket)
                    if job.clock() >= gpus_due and self.node not in job.trouble.no_gpu:
                        gpus_due = job.clock() + job.gpu_every_s * (0.95 + 0.1 * job.random.random())
                        await self._send_rows(socket, self._gpu_row())
                        await self._gpu_events(socket)
                await _pause(stop, job.health_s)
        finally:
            reader.cancel()

    # --- what it says --------------------------------------------------------------------------------------------

    def _health(self) -> Health:
        job = self.job
        blind: Any = []
        if self.node in job.trouble.blind:
            blind = [
                {
                    "what": "kernel_log",
                    "why": "/dev/kmsg: permission denied",
                    "do": "run the agent as root or in the group adm, or set kernel.dmesg_restrict=0",
                }
            ]
        state = {
            "blind": blind,
            "spool": {"free_mib": 9000 - self.seqs[self.source.source], "limit_mib": 512, "dropped": 0, "error": None},
        }
        ranks: list[dict[str, Any]] = [self._slot(rank) for rank in job.ranks_of(self.node)]
        if self.node in job.trouble.garbage:
            state = {"blind": {"what": 7}, "spool": "full"}
            ranks = [_garbage(rank["rank"], index) for index, rank in enumerate(ranks)]
        return Health(self.source.source, self.name, job.clock(), ranks, state)

    def _slot(self, rank: int) -> dict[str, Any]:
        job, trouble, now = self.job, self.job.trouble, self.job.clock()
        step = job.step_now()
        start = job.started + step * STEP_S + self.late_s[rank % GPUS_PER_NODE]
        phase, since = _phase(start, now if job.stood_since is None else job.stood_since)
        if job.stood_since is not None:
            phase, since = ("data", start) if rank in trouble.data else ("backward", start + 0.36 * STEP_S)
        if rank in trouble.behind:
            step, start = step - 10, start - 10 * STEP_S
        if rank in trouble.long:
            phase, since = "checkpoint", job.started
        dead = rank in trouble.dead
        if not dead:
            self.beats[rank] = self.beats.get(rank, 0) + 1
        waits = job.stood_since is not None
        slot = {
            "rank": rank,
            "source": f"r{rank}-{int(job.started * 1e9):x}-{20000 + rank}",
            "pid": 20000 + rank,
            "alive": not dead,
            "state": "running",
            "step": step,
            "step_start": start,
            "phase": phase,
            "phase_start": since,
            "expect_s": 900.0 if rank in trouble.long else 0.0,
            "beat": self.beats.get(rank, 0),
            "pending": self.beats.get(rank, 0),
            "last_seq": 4 * step,
            "dropped": 0,
            "segment_key": "",
            "time": now,
            "phases": {name: [step, share * step, share * 1.2] for name, share in PHASES},
            "proc": {
                "state": "X" if dead else "S" if waits else job.random.choice("RRRS"),
                "cpu": 0.0 if rank in trouble.data else 0.93 + 0.1 * job.random.random(),
                "wchan": "poll_schedule_timeout" if rank in trouble.data else "",
            },
            "gpu": {"index": rank % GPUS_PER_NODE, "uuid": f"GPU-{self.node:04x}{rank % GPUS_PER_NODE:04x}-0000"},
            "local_rank": rank % GPUS_PER_NODE,
            "world_size": job.ranks,
            "can_dump": True,
            "trouble": None,
        }
        if rank in trouble.torn:
            slot |= {"trouble": "the slot is version 9, this agent reads 1 and 2: update stabilityclient", "step": None}
        return slot

    def _gpu_row(self) -> dict[str, float]:
        row = {}
        noise, stands = self.job.random.random, self.job.stood_since is not None
        for rank in self.job.ranks_of(self.node):
            trouble = self.job.trouble
            if rank in trouble.lost:
                continue
            hot = rank in trouble.hot
            values = {
                "util_pct": 100.0 if stands else round(94 + 6 * noise()),
                "mem_used_mib": round(16 * (61 + 6 * noise()) * GIB) / 16,
                "mem_total_mib": 80.0 * GIB,
                "temp_c": 91 if hot else round(52 + 14 * noise()),
                "mem_temp_c": 98 if hot else round(60 + 14 * noise()),
                "power_w": round((380 if hot else 610 + 80 * noise()) * (0.3 if stands else 1), 3),
                "power_limit_w": 700.0,
                "clock_sm_mhz": 900.0 if hot else 1755.0,
                "ecc_corrected": float(rank % 97 == 5),
                "ecc_uncorrected": 2.0 if rank in trouble.ecc else 0.0,
                "throttle_reasons": 0x40 if hot else 0.0,
                "throttle_hw_thermal_s": 41.0 if hot else 0.0,
                "pcie_replays": 0.0,
                "nvlink_errors": 0.0,
                "poll_ms": round(3 + noise(), 2),
            }
            row |= {f"gpu/{rank % GPUS_PER_NODE}/{name}": value for name, value in values.items()}
        return row

    async def _first_words(self, socket: ClientConnection) -> None:
        job = self.job
        if self.node in job.trouble.no_gpu:
            text = "no GPU visible here: libnvidia-ml.so.1 is not installed"
            await self._event(socket, "gpu_note", {"visible": False, "text": text})
            return
        gpus = [
            {
                "index": rank % GPUS_PER_NODE,
                "uuid": f"GPU-{self.node:04x}{rank % GPUS_PER_NODE:04x}-0000",
                "name": "NVIDIA H100 80GB HBM3",
                "bus_id": f"00000000:{0x18 + rank % GPUS_PER_NODE:02X}:00.0",
                "memory_mib": 80 * GIB,
                "ranks": [rank],
            }
            for rank in job.ranks_of(self.node)
        ]
        text = f"{len(gpus)} GPUs: NVIDIA H100 80GB HBM3"
        await self._event(socket, "gpu_note", {"visible": True, "text": text})
        await self._event(socket, "gpu_inventory", {"driver": "570.86.15", "gpus": gpus, "text": text})

    async def _deaths(self, socket: ClientConnection) -> None:
        for rank in sorted(self.job.trouble.dead & set(self.job.ranks_of(self.node)) - self.said_dead):
            self.said_dead.add(rank)
            slot = self._slot(rank)
            data = {
                "source": slot["source"],
                "rank": rank,
                "pid": slot["pid"],
                "last_phase": slot["phase"],
                "cause": "oom_kill",
                "signal": 9,
                "signal_name": "SIGKILL",
                "how": "pidfd",
                "evidence": {"text": "The kernel killed it: out of memory.", "state": "running", "beat": slot["beat"]},
            }
            await self._event(socket, "process_death", data, step=slot["step"])

    async def _gpu_events(self, socket: ClientConnection) -> None:
        """Report what began at GPUs: the server judges a GPU by that; high readings alone are no fault."""
        trouble, here = self.job.trouble, set(self.job.ranks_of(self.node))
        for rank in sorted(trouble.lost & here - self.said_lost):
            self.said_lost.add(rank)
            await self._gpu_event(socket, rank, "lost", {}, f"GPU {rank % GPUS_PER_NODE} has fallen off the bus")
        for rank in sorted(trouble.hot & here - self.said_hot):
            self.said_hot.add(rank)
            text = "the hardware lowers the clocks because of heat, 100 % of the time"
            await self._gpu_event(socket, rank, "throttle", {"reason": "hw_thermal", "share": 1.0}, text)

    async def _gpu_event(
        self, socket: ClientConnection, rank: int, what: str, facts: dict[str, Any], text: str
    ) -> None:  # fmt: skip
        index = rank % GPUS_PER_NODE
        data = {
            "uuid": f"GPU-{self.node:04x}{index:04x}-0000",
            "index": index,
            "bus_id": f"00000000:{0x18 + index:02X}:00.0",
            "name": "NVIDIA H100 80GB HBM3",
            "ranks": [rank],
            "what": what,
            "state": "on",
            "facts": facts,
            "text": text,
        }
        await self._event(socket, "gpu", data, step=self.job.step_now())

    async def _loss(self, socket: ClientConnection) -> None:
        """Rank 0's loss, so that the charts have a line."""
        step = self.job.step_now()
        if step <= self.logged:
            return
        if self.job.row_metrics:
            await self._rows_of_ranks(socket, max(self.logged + 1, step - 5), step)
            self.logged = step
            return
        if self.node:
            return
        for one in range(max(self.logged + 1, step - 50), step + 1):
            row = {"loss": 2 + 3 * math.exp(-one / 40) + 0.05 * self.job.random.random(), "step_time_s": STEP_S}
            await self._send_rows(socket, row, step=one, source=self.rank)
        self.logged = step

    async def _rows_of_ranks(self, socket: ClientConnection, first: int, last: int) -> None:
        """Rows of every rank here in one message a step, as a node's agent sends them."""
        random, names = self.job.random, ["loss", *(f"own/{at}" for at in range(1, self.job.row_metrics))]
        for step in range(first, last + 1):
            frames = []
            for source in self.ranks:
                values = [2 + 3 * math.exp(-step / 40) + 0.05 * random.random() for _ in names]
                block = PointsBlock(
                    names, struct.pack("<q", step), struct.pack("<d", self.job.clock()),
                    struct.pack(f"<{len(names)}d", *values),
                )  # fmt: skip
                self.seqs[source.source] += 1
                seq = self.seqs[source.source]
                frames.append(Frame(source, seq, seq, [block]))
            await socket.send(encode_message(together(frames)))

    # --- frames --------------------------------------------------------------------------------------------------

    async def _send_rows(
        self, socket: ClientConnection, row: dict[str, float], step: int | None = None, source: SourceInfo | None = None
    ) -> None:
        at = self.job.step_now() if step is None else step
        if not row:
            return
        values = struct.pack(f"<{len(row)}d", *row.values())
        block = PointsBlock(list(row), struct.pack("<q", at), struct.pack("<d", self.job.clock()), values)
        await self._send(socket, block, source or self.source)

    async def _event(self, socket: ClientConnection, kind: str, data: dict[str, Any], step: int | None = None) -> None:
        await self._send(socket, EventBlock(kind, self.job.clock(), step, data), self.source)

    async def _send(self, socket: ClientConnection, block: PointsBlock | EventBlock, source: SourceInfo) -> None:
        self.seqs[source.source] += 1
        seq = self.seqs[source.source]
        await socket.send(encode_message(Frame(source, seq, seq, [block])))


def _phase(start: float, now: float) -> tuple[str, float]:
    """Return the phase of a step that began at ``start``, and when that phase began."""
    for name, share in PHASES:
        if now < start + share * STEP_S:
            return name, start
        start += share * STEP_S
    return PHASES[-1][0], start - PHASES[-1][1] * STEP_S


def _garbage(rank: int, index: int) -> dict[str, Any]:
    """Return a rank's entry of fields that are of the wrong kind."""
    odd: list[Any] = [None, "NaN", -1, 1e300, [], {}, True, "\x00<b>x</b>"]
    value = odd[index % len(odd)]
    fields = ("step", "step_start", "phase", "phase_start", "beat", "pid", "gpu", "proc", "state", "trouble", "time")
    return {"rank": rank, "source": f"r{rank}-1", "alive": True} | dict.fromkeys(fields, value)


async def _drop(socket: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
