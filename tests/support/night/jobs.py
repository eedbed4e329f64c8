"""Jobs whose agents speak the real protocol: one that hangs, and one that stands in a spike and obeys orders."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any

from stabilityclient.wire import CommandMessage, Frame, Health, Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job

__all__ = ["COMMIT", "ONSET", "SAVED", "SUSPECT", "HangingJob", "LiveJob", "SpikingJob", "launch", "tell"]

#: The node whose rank does not get its data.
SUSPECT = "gpu-017"
#: Of the code of the run that ended well, and of those after it.
COMMIT, LATER = "0123456789abcdef0123456789abcdef01234567", "89abcdef0123456789abcdef0123456789abcdef"
#: Of the job in a spike: since when `code` stays up, the last step that it logged, its checkpoints.
ONSET, STOOD, SAVED = 220, 420, (200, 250)
#: Between two words of an agent that lives, seconds.
BEAT_S = 0.5
CONFIG = {"model": {"layers": 32, "width": 4096}, "optimizer": {"lr": 6e-4, "warmup": 2000}, "batch_size": 1024}


def launch(job: Job, lr: str, commit: str) -> dict[str, Any]:
    """Return what an agent sees of a start with this learning rate, of this commit."""
    return {
        "source": job.info.source,
        "host": job.info.node,
        "command": ["python", "train.py", "--lr", lr],
        "git": {"commit": commit, "branch": "main", "dirty": False, "changed": 0, "files": []},
    }


async def tell(url: str, hello: Hello, *frames: Frame) -> None:
    """Send what a job's agent would send, and leave."""
    async with RawAgent(f"{url.replace('http', 'ws')}/api/v1/agent") as agent:
        await agent.ask(hello)
        await agent.store(*frames)


class LiveJob(ABC):
    """A job whose agents are connected while the context lasts.

    Args:
        url: of the server. run_id: of the run.
    """

    def __init__(self, url: str, run_id: str) -> None:
        self.run_id = run_id
        self.url = f"{url.replace('http', 'ws')}/api/v1/agent"
        self.stop = threading.Event()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=run_id)

    @abstractmethod
    async def live(self) -> None:
        """Do what the agents do, until ``stop`` is set."""

    def _run(self) -> None:
        try:
            asyncio.run(self.live())
        except Exception as error:  # told where the job is awaited
            self._trouble = error

    def __enter__(self) -> LiveJob:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        self._thread.join()
        if self._trouble is not None and error is None:
            raise self._trouble


class HangingJob(LiveJob):
    """Two ranks on two nodes: they train for some seconds, then rank 1 waits for its data and rank 0 for rank 1."""

    async def live(self) -> None:
        await asyncio.gather(self._node(0, "gpu-003"), self._node(1, SUSPECT))

    async def _node(self, rank: int, name: str) -> None:
        job, began = Job(rank, 1, 2), time.time()
        job.info.node, job.info.started, job.info.pid = name, began, 100 + rank
        job.wait(began - 1000)
        async with RawAgent(self.url) as agent:
            hello = Hello(self.run_id, f"a-{rank}", name, "0.1.0", project="llm", name="70b-stuck", sources=[job.info])
            await agent.ask(hello)
            step, since = 0, began
            for beat in range(1, 1_000_000):
                if self.stop.is_set():
                    return
                now = time.time()
                if step < 40:
                    await agent.ask(job.rows(range(step + 1, step + 11)))
                    step, since = step + 10, now
                stuck = step >= 40
                slot = _slot(job, step, since, beat=4 if stuck else beat) | {
                    "phase": "data" if rank and stuck else "backward",
                    "world_size": 2,
                }
                await agent.send(Health(f"a-{rank}", name, now, [slot], {}))
                await asyncio.sleep(BEAT_S)


class SpikingJob(LiveJob):
    """One rank in whose step 220 the loss of the data set `code` jumped, and stayed up.

    It has checkpoints at 200 and 250 and evaluates, for as long as somebody looks: nothing happens by itself. Ordered
    to roll back, it does, as a rank does it: it trains up to the common boundary, goes back and trains some steps more.
    A rollback to a checkpoint from before the spike heals it, one to a later one, or undoing the first, does not.

    Args:
        ago_s: the spike began so long before now, at least as long as it lasts already (20 s).
    """

    def __init__(self, url: str, run_id: str, name: str, ago_s: float = 30.0) -> None:
        super().__init__(url, run_id)
        self._name = name
        self._job = Job()
        self._job.info.node, self._job.info.pid = "gpu-008", 300
        began = time.time() - ago_s - 0.1 * ONSET
        self._job.info.started = began
        self._job.wait(began - 1000)
        self._spoilt = True
        self._step = 0
        self._obeyed: set[str] = set()

    async def live(self) -> None:
        job, first = self._job, 1
        async with RawAgent(self.url) as agent:
            hello = Hello(self.run_id, f"a-{self.run_id}", "gpu-008", "0.1.0", project="llm", name=self._name)
            hello.config, hello.sources, hello.tags = CONFIG, [job.info], ["night"]
            await agent.ask(hello)
            can = {"can": ["skip_batches", "skip_range"], "branches": True}
            await agent.store(job.event("launch", **launch(job, "6e-4", LATER)), job.event("handler", **can))
            for saved in SAVED:
                await agent.store(self._train(first, saved), job.event("checkpoint", saved, path=f"/ckpt/{saved}"))
                first = saved + 1
            await agent.store(self._train(first, STOOD))
            since = time.time()
            beat = 0
            heard = asyncio.create_task(agent.receive())
            while not self.stop.is_set():
                beat += 1
                slot = _slot(job, self._step + 1, since, beat) | {"phase": "eval", "expect_s": 3600.0}
                await agent.send(Health(f"a-{self.run_id}", "gpu-008", time.time(), [slot], {}))
                done, _ = await asyncio.wait([heard], timeout=BEAT_S)
                if done:
                    message = heard.result()
                    if isinstance(message, CommandMessage):
                        await self._obey(agent, message.command)
                    heard = asyncio.create_task(agent.receive())
            heard.cancel()

    def _train(self, first: int, last: int) -> Frame:
        steps = range(first, last + 1)
        wave = [0.01 * math.sin(1.7 * step) for step in steps]
        fall = [math.exp(-step / 40) for step in steps]
        web = [2.0 + 3.0 * f + w for f, w in zip(fall, wave, strict=True)]
        since = [step - ONSET for step in steps]
        up = [2.4 + 3.6 * math.exp(-n / 5) if self._spoilt and n >= 0 else 0.0 for n in since]
        code = [1.6 + 2.0 * f - w + u for f, w, u in zip(fall, wave, up, strict=True)]
        self._step = last
        return self._job.rows(
            steps,
            {
                "loss": [(w + c) / 2 for w, c in zip(web, code, strict=True)],
                "loss/web": web,
                "loss/code": code,
                "tokens": [4.2e6 * step for step in steps],
                "lr": [6e-4] * len(steps),
            },
        )

    async def _obey(self, agent: RawAgent, command: dict[str, Any]) -> None:
        key = command["command_id"]
        if command["kind"] != "rollback" or key in self._obeyed:  # how an order goes on is told, too
            return
        self._obeyed.add(key)
        job, boundary, to_step = self._job, command["apply_at_step"], command["to_step"]
        job.wait(max(0.0, time.time() - job.now))
        about = {"command_id": key, "attempt": command["attempt"]}
        back = {"key": key, "command_id": key, "to_step": to_step, "cause": "command", "reason": command["reason"]}
        if command.get("branch"):
            back["branch"] = command["branch"]
        frames = [self._train(self._step + 1, boundary - 1)] if boundary - 1 > self._step else []
        frames += [
            job.event("command", boundary, **about, state="ready", detail=""),
            job.event("segment", boundary, **back),
            job.event("command", boundary, **about, state="acted", detail="", applied=None),
        ]
        self._spoilt = to_step >= ONSET
        await agent.store(*frames, self._train(to_step + 1, to_step + 20))


def _slot(job: Job, step: int, since: float, beat: int) -> dict[str, Any]:
    """Return what a rank that lives tells of itself."""
    return {
        "rank": job.info.rank, "source": job.info.source, "pid": job.info.pid, "alive": True, "state": "running",
        "step": step, "step_start": since, "phase": "", "phase_start": since, "expect_s": 0.0, "beat": beat,
        "last_seq": step, "dropped": 0, "segment_key": "", "time": time.time(), "world_size": 1,
    }  # fmt: skip
