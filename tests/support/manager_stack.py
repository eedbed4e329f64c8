"""A run manager on a real Redis with a small window, for tests of what happens around the archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.ingest.ingest import Ingest, StoredFrames
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.runs.archiving.archiver import ArchiveFiles
from stabilitybackend.runs.archiving.restart_files import RestartShare
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.ownership.fence import Fence
from stabilitybackend.runs.reading.reader import RunReader
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import Location, open_location
from stabilityclient.wire import Frame, Hello, encode_message
from support.job_frames import Job
from support.waiting import until

__all__ = ["HELLO", "KEYS", "WINDOW_BYTES", "Lossy", "Stage", "points", "rows"]

HELLO = Hello("run-1", "a1", "n0", "0.1.0")
#: Small enough that a few frames fill it.
WINDOW_BYTES = 4_000
KEYS = RunKeys("run-1")


class Stage:
    """A run manager on a real Redis, and frames that come in through the ingest. ``restart`` is a new process.

    Args:
        redis: a real server.
        folder: of the archive. restart_folder: of what a restart begins with; None keeps nothing for it.
    """

    #: Of decoded points that are kept.
    cache_bytes = 1 << 20
    window_bytes = WINDOW_BYTES
    #: Runs are written down in Redis, as by a worker of several.
    in_redis = False

    def __init__(self, redis: Redis, folder: Path, restart_folder: Path | None = None) -> None:
        self.redis = redis
        self.folder = folder
        self.restart_folder = restart_folder
        self.now = 1_000.0
        #: Parts whose writing was begun, merged ones too.
        self.begun = 0
        self.manager = self._manager()

    def _location(self) -> Location:
        return open_location(self.folder)

    def _manager(self) -> RunManager:
        files = ArchiveFiles(
            self._location(),
            ByteCache(self.cache_bytes),
            lambda: self.now,
            self._token,
            RestartShare(self.restart_folder, self.in_redis),
        )
        return RunManager(self.redis, lambda: self.now, files, self.window_bytes, Limits())

    def _token(self) -> str:
        self.begun += 1
        return f"{self.begun:08x}"

    async def restart(self) -> None:
        await self.manager.stop()
        self.now += 1.0
        self.manager = self._manager()

    async def reader(self) -> RunReader:
        """Return who serves run-1 from what is stored while nobody owns it."""
        found = await self.manager.readers.get("run-1")
        assert isinstance(found, RunReader)
        return found

    async def send(self, *frames: Frame) -> RunWorker:
        """Store frames and wait until the worker has folded them and stored what follows from them."""
        await self.manager._index.register(HELLO, self.now)
        worker = await self.manager.get("run-1")
        async with Ingest(self.redis) as ingest:
            for frame in frames:
                message = encode_message(frame)
                stored = await ingest.append("run-1", frame.source, frame.first_seq, frame.last_seq, message)
                if isinstance(stored, StoredFrames):  # as the gateway does
                    await self.manager.frame_stored("run-1", stored.stream_id, len(message))
        last: Any = (await self.redis.xinfo_stream(KEYS.frames))["last-generated-id"]
        await self.until(lambda: worker._stored_to == last.decode(), "the worker has stored all that follows")
        return worker

    async def archived(self, worker: RunWorker, parts: int) -> None:
        """Wait until the run fits into its window, at least so many parts were written and the archiver rests.

        Written, not there: adjacent small parts become one as soon as there are enough of them.
        """

        def done() -> bool:
            facts = worker.window.facts(worker.state.store)
            return self.begun >= parts and facts.hot.bytes <= WINDOW_BYTES and facts.state == "ok"

        await self.until(done, f"{parts} parts are written")

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, 10, what)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())


class Lossy:
    """A fence whose first commit fails: before it is sent, or after it was done."""

    def __init__(self, fence: Fence, *, after: bool) -> None:
        self._fence = fence
        self._after = after
        self.failures = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fence, name)

    async def commit(self, *change: Any) -> None:
        fails, self.failures = self.failures > 0, 0
        if not fails or self._after:
            await self._fence.commit(*change)
        if fails:
            raise ConnectionError("the connection was cut")


def rows(job: Job, first: int, last: int, size: int = 20) -> list[Frame]:
    """Return frames of ``size`` steps each, from ``first`` to ``last``."""
    return [job.rows(range(at, min(at + size, last + 1))) for at in range(first, last + 1, size)]


def points(worker: RunWorker) -> dict[tuple[int, bool, int], float]:
    """Return every stored loss of rank 0 by (segment, stray, step)."""
    view = worker.state.store.view(["loss"])
    found: dict[tuple[int, bool, int], float] = {}
    for key in view.keys("loss"):
        one = view.rows(key)
        found |= {(key.segment, key.stray, s): v for s, v in zip(one.steps.tolist(), one.values.tolist(), strict=True)}
    assert view.problems == []
    return found
