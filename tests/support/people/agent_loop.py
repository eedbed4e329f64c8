"""An agent that stays connected while a test asks the server, from a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from support.gateway_stack import RawAgent
from support.job_frames import Job

__all__ = ["Loop", "begun"]


@dataclass
class Loop:
    """An event loop in a thread."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def do(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(30)

    def close(self) -> None:
        """End what runs on it; connections that a failed test left open too."""

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.do(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def begun(url: str, run_id: str, key: str | None = None, project: str = "p") -> tuple[RawAgent, Job]:
    """Return the agent of a job at step 260 with a checkpoint of step 200; it stays connected until it is closed."""
    agent, job = RawAgent(url, key), Job()
    await agent.__aenter__()
    frames = [job.rows(range(1, 201)), job.event("checkpoint", 200, path="c/200"), job.rows(range(201, 261))]
    await agent.begin(*frames, run_id=run_id, project=project)
    return agent, job
