"""Moves a run's oldest frames from its stream to files, and keeps the list of them in Redis.

The order makes it safe to be killed anywhere: the files are written and synced first; then one transaction lists the
part and trims the stream. Before it the files are garbage that the next start removes; after it they are the only
copy. So every frame is in the stream or in a listed part, never in both and never in neither.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.archive.cache import ByteCache
from stabilitybackend.archive.compaction import compact
from stabilitybackend.archive.location import Location
from stabilitybackend.archive.part import Part, PartReader, write_part
from stabilitybackend.archive.series import Rows, SeriesKey, join_rows
from stabilitybackend.errors import ArchiveError
from stabilitybackend.keys import RunKeys
from stabilitybackend.runs import snapshot
from stabilitybackend.runs.hot import Generation
from stabilitybackend.runs.live import stream_order

__all__ = ["ArchiveFiles", "RunArchive"]

#: Frames read from the stream in one round trip while a part is written.
READ_COUNT = 64
#: Adjacent parts of one size that are merged into one of the next size.
MERGE_PARTS = 8
#: Parts with fewer rows than this are of the smallest size; each further size is MERGE_PARTS times larger.
SMALL_ROWS = 65_536
#: No merge makes a part of more rows: merging holds them in memory, 24 bytes each.
MAX_ROWS = 4_000_000

_log = logging.getLogger(__name__)


class ArchiveFiles:
    """What all runs of a process share: where files go, the cache of what is read, one writer at a time.

    Args:
        location: of all files.
        cache: of decoded arrays.
        clock: unix seconds now.
        token: a short name that was never used before, of letters and digits.
    """

    def __init__(
        self,
        location: Location,
        cache: ByteCache,
        clock: Callable[[], float],
        token: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self.location = location
        self.cache = cache
        self.clock = clock
        self.token = token
        self.writing = asyncio.Lock()


class RunArchive:
    """The parts of one run.

    Args:
        run_id: the run.
        redis: client of the server that holds its stream.
        files: shared by all runs.
    """

    def __init__(self, run_id: str, redis: Redis, files: ArchiveFiles) -> None:
        self._run_id = run_id
        self._redis = redis
        self._files = files
        self._keys = RunKeys(run_id)
        #: The stem under which a range is written: a second try after an unsure commit must find its own first one.
        self._stems: dict[tuple[str, str], str] = {}

    @property
    def place(self) -> str:
        """Where the files are, for people."""
        return f"{self._files.location.base}/{self._run_id}"

    async def load(self) -> list[PartReader]:
        """Return the parts, oldest first, after removing what an interrupted write left."""
        await self._redis.delete(self._keys.parts_next)
        found: Any = await self._redis.hvals(self._keys.parts)
        parts = sorted((Part.from_json(data) for data in found), key=lambda part: stream_order(part.to_id))
        await self.sweep()
        return [self._reader(part) for part in parts]

    async def has_files(self) -> bool:
        """Return whether anything of the run is in its place."""
        return bool(await asyncio.to_thread(self._files.location.names, self._run_id))

    def _reader(self, part: Part) -> PartReader:
        return PartReader(self._files.location, self._run_id, part, self._files.cache)

    # --- writing -------------------------------------------------------------------------------------------------

    async def archive(self, generations: Sequence[Generation]) -> PartReader:
        """Make a part of sealed generations and trim the stream; return the part.

        Raises:
            ArchiveError: a file could not be written. Nothing changed; try again later.
            RedisError: Redis is away. It may have happened or not: the same call again is right.
        """
        from_id, to_id = generations[0].from_id, generations[-1].to_id
        stem = self._stem(from_id, to_id)
        async with self._files.writing:
            done: Any = await self._redis.hget(self._keys.parts, stem)
            if done is None:
                frames = [frame async for frame in self._frames(from_id, to_id)]
                part = await self._write(stem, from_id, to_id, generations, frames)
                pipe = self._redis.pipeline(transaction=True)
                pipe.hset(self._keys.parts, stem, part.as_json())
                pipe.srem(self._keys.garbage, stem)
                pipe.xtrim(self._keys.frames, minid=_after(to_id), approximate=False)
                await pipe.execute()
            else:
                part = Part.from_json(done)
        self._stems.pop((from_id, to_id), None)
        _log.info("run %s: archived %d rows up to %s in %d bytes", self._run_id, part.rows, to_id, part.bytes)
        return self._reader(part)

    async def again(self, old: Part, generation: Generation, frames: list[tuple[str, bytes]]) -> PartReader:
        """Write the same range as ``old`` from frames that were folded again; it counts after ``replace``."""
        async with self._files.writing:
            stem = self._stem(old.from_id, old.to_id)
            part = await self._write(stem, old.from_id, old.to_id, [generation], frames)
            await self._redis.hset(self._keys.parts_next, stem, part.as_json())
        self._stems.pop((old.from_id, old.to_id), None)
        return self._reader(part)

    async def replace(self, old: Sequence[PartReader], new: Sequence[PartReader]) -> None:
        """Let the parts ``new`` take the place of ``old`` in the list, all or nothing; ``sweep`` removes the files."""
        pipe = self._redis.pipeline(transaction=True)
        for reader in old:
            pipe.hdel(self._keys.parts, reader.part.stem)
            pipe.sadd(self._keys.garbage, reader.part.stem)
        for reader in new:
            pipe.hset(self._keys.parts, reader.part.stem, reader.part.as_json())
            pipe.srem(self._keys.garbage, reader.part.stem)
        pipe.delete(self._keys.parts_next)
        await pipe.execute()

    def mergeable(self, readers: Sequence[PartReader], *, everything: bool = False) -> list[PartReader]:
        """Return adjacent parts that should become one, none where there are none.

        Args:
            everything: as many as a part may hold, for the command; else MERGE_PARTS of one size.
        """
        for i in range(len(readers)):
            group = list(readers[i:]) if everything else list(readers[i : i + MERGE_PARTS])
            while group and sum(reader.part.rows for reader in group) > MAX_ROWS:
                group.pop()
            if everything and len(group) > 1:
                return group
            if len(group) == MERGE_PARTS and len({_size(reader.part.rows) for reader in group}) == 1:
                return group
        return []

    async def merge(self, group: Sequence[PartReader]) -> PartReader:
        """Make one part of adjacent ones and put it into the list in their place. ``sweep`` removes their files.

        Raises:
            ArchiveError: a file could not be read or written. Nothing changed.
        """
        async with self._files.writing:
            stem = self._new_stem(group[0].part.from_id, group[-1].part.to_id)
            await self._redis.sadd(self._keys.garbage, stem)
            part = await asyncio.to_thread(
                compact, self._files.location, self._run_id, group, stem, self._files.clock()
            )
        reader = self._reader(part)
        await self.replace(group, [reader])
        return reader

    async def delete(self, readers: Sequence[PartReader]) -> None:
        """Remove all files of the run. Its keys are the caller's."""
        for reader in readers:
            await self._redis.sadd(self._keys.garbage, reader.part.stem)
        await self._redis.delete(self._keys.parts, self._keys.parts_next)
        await self.sweep()

    async def sweep(self) -> None:
        """Remove the files of stems that no part names. What can't be removed now stays noted for the next time."""
        found: Any = await self._redis.smembers(self._keys.garbage)
        for stem in (name.decode() for name in found):
            if await self._redis.hexists(self._keys.parts, stem):
                await self._redis.srem(self._keys.garbage, stem)
                continue
            try:
                await asyncio.to_thread(Part.delete_files, self._files.location, self._run_id, stem)
            except ArchiveError as error:
                _log.warning("run %s: old files stay for now: %s", self._run_id, error.message)
            else:
                await self._redis.srem(self._keys.garbage, stem)

    async def _write(
        self, stem: str, from_id: str, to_id: str, generations: Sequence[Generation], frames: list[tuple[str, bytes]]
    ) -> Part:
        await self._redis.sadd(self._keys.garbage, stem)
        created = self._files.clock()

        def write() -> Part:
            frozen = generations[-1].state
            assert frozen is not None
            return write_part(
                self._files.location, self._run_id, stem, from_id=from_id, to_id=to_id,
                series=_joined(generations), frames=frames, state=snapshot.seal(frozen), created=created,
            )  # fmt: skip

        return await asyncio.to_thread(write)

    async def _frames(self, from_id: str, to_id: str) -> AsyncIterator[tuple[str, bytes]]:
        after = from_id
        while True:
            found: Any = await self._redis.xrange(self._keys.frames, min=f"({after}", max=to_id, count=READ_COUNT)
            for entry_id, fields in found:
                after = entry_id.decode()
                yield after, fields[b"b"]
            if len(found) < READ_COUNT:
                return

    def _stem(self, from_id: str, to_id: str) -> str:
        return self._stems.setdefault((from_id, to_id), self._new_stem(from_id, to_id))

    def _new_stem(self, from_id: str, to_id: str) -> str:
        """Return a name that no other files have: a range is written again at another time."""
        return f"{from_id}_{to_id}-{self._files.token()}"


def _joined(generations: Sequence[Generation]) -> list[tuple[SeriesKey, Rows]]:
    """Return the series of several generations as one, in the order in which they appeared."""
    found: dict[SeriesKey, list[Rows]] = {}
    for generation in generations:
        for key, rows in generation.contents():
            found.setdefault(key, []).append(rows)
    return [(key, rows[0] if len(rows) == 1 else join_rows(rows)) for key, rows in found.items()]


def _after(stream_id: str) -> str:
    """Return the smallest stream id after ``stream_id``."""
    ms, n = stream_order(stream_id)
    return f"{ms}-{n + 1}"


def _size(rows: int) -> int:
    """Return 0 for the smallest parts, 1 for those up to MERGE_PARTS times larger, and so on."""
    size = 0
    while rows >= SMALL_ROWS * MERGE_PARTS**size:
        size += 1
    return size
