"""Moves a run's oldest frames from its stream to files, and keeps the list of them in Redis.

The order makes it safe to be killed anywhere: the files are written and synced first; then one transaction lists the
part and trims the stream. Before it the files are garbage that is removed after the next start; after it they are the
only copy. So every frame is in the stream or in a listed part, never in both and never in neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from redis.exceptions import RedisError

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import entries_between, next_id, stream_order
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.archiving.restart_files import RestartShare
from stabilitybackend.runs.archiving.unlisted import UnlistedFiles
from stabilitybackend.runs.ownership.fence import CommitRefused, Fence, NotOwner
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.contents import NO_CUTS, Cuts
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import Location
from stabilitybackend.storage.archive.part import Part, PartReader, write_part
from stabilitybackend.storage.archive.series import Rows, SeriesKey, join_rows
from stabilitybackend.storage.archive.writing import write_from
from stabilitybackend.storage.points.memtable import Generation

__all__ = ["ArchiveFiles", "PartsChanged", "RunArchive", "compact"]

#: Bytes of decoded chunks that a merge keeps: neighbours in the file are asked for one after the other.
CACHE_BYTES = 32 * 2**20


def compact(
    location: Location, run_id: str, readers: Sequence[PartReader], stem: str, created: float, cuts: Cuts = NO_CUTS
) -> Part:
    """Write one part with everything that adjacent parts hold, and return it. The old files stay: they are listed.

    A step that is in several parts has the rows of all, oldest first; a series' aggregates are made again from its
    rows, and of the states only the last is kept. One series at a time is in memory.

    Args:
        readers: oldest first, each beginning where the one before it ends.
        stem: of the new part. created: unix seconds. cuts: as in ``write_part``.

    Raises:
        ValueError: the parts are not adjacent.
        ArchiveError: a file could not be read or written.
    """
    if not readers or any(a.part.to_id != b.part.from_id for a, b in pairwise(readers)):
        ranges = ", ".join(f"({r.part.from_id}, {r.part.to_id}]" for r in readers)
        raise ValueError(f"can't merge the parts {ranges or '(none)'}: expected each to begin where the last one ends")
    parts = [reader.part for reader in readers]
    files = [Files.of(run_id, part.stem) for part in parts]
    names = [name for each in files for name in (each.series, each.points, each.frames)]
    with location.nearby([*names, files[-1].state]) as near:
        # Not the shared cache: a merge reads everything once and would evict entries in use.
        cache = ByteCache(CACHE_BYTES)
        sources = [PartReader(near, run_id, part, cache) for part in parts]
        keys = list(dict.fromkeys(chain.from_iterable(source.keys() for source in sources)))

        def rows_of(key: SeriesKey) -> Rows:
            return join_rows([source.rows(key) for source in sources])

        def frames() -> Iterator[tuple[str, bytes]]:
            for source in sources:
                yield from source.frames()

        return write_from(
            location, run_id, stem, from_id=parts[0].from_id, to_id=parts[-1].to_id, keys=keys, rows_of=rows_of,
            frames=frames(), state=sources[-1].state(), created=created, cuts=cuts,
        )  # fmt: skip


#: Adjacent parts of one size that are merged into one of the next size.
MERGE_PARTS = 8
#: Parts with fewer rows than this are of the smallest size; each further size is MERGE_PARTS times larger.
SMALL_ROWS = 65_536
#: No merge makes a part of more rows: its memory grows with its longest series, to about 200 MiB here.
MAX_ROWS = 4_000_000
#: Nor of more bytes in its files: a job that logs few values and many events fills a part with frames.
MAX_BYTES = 256 * 2**20
#: Files that another process noted as unfinished are kept so long after they are first seen, seconds: it may be
#: writing them still. One that is stalled for longer removes them itself (``_drop``).
FOREIGN_S = 60.0

_log = logging.getLogger(__name__)


class PartsChanged(ArchiveError):
    """Redis lists other parts than this process wrote: it lost its newest writes, or an answer was lost on its way.

    Nothing was changed. The caller takes the run up again from Redis.
    """

    default_code = "parts_changed"


@dataclass(eq=False)
class ArchiveFiles:
    """Shared by all runs of a process: the place of files, the cache of reads, one writer at a time.

    Args:
        clock: unix seconds now.
        token: a short name that was never used before, of letters and digits.
        restart: lets a restart begin where the last process ended.
    """

    location: Location
    cache: ByteCache
    clock: Callable[[], float]
    token: Callable[[], str] = lambda: secrets.token_hex(4)
    restart: RestartShare = field(default_factory=RestartShare)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class RunArchive:
    """The parts of one run; ``cuts`` returns where rollbacks left segments, as far as they are judged now."""

    def __init__(
        self, run_id: str, fence: Fence, files: ArchiveFiles, cuts: Callable[[], Cuts] = dict[int, list[int]]
    ) -> None:
        self._run_id = run_id
        self._fence = fence
        self._redis = fence.redis
        self._files = files
        self._keys = RunKeys(run_id)
        self._cuts = cuts
        #: The stem under which a range is written: a second try after an unsure commit must find its own first one.
        self._stems: dict[tuple[str, str], str] = {}
        #: Stems of the parts that Redis lists, as far as this process knows.
        self._listed: set[str] = set()
        #: Stems that this process noted as garbage, and those of others with the time at which they were first seen.
        self._noted: set[str] = set()
        self._foreign: dict[str, float] = {}
        self._unlisted = UnlistedFiles(run_id, self._redis, files.location, files.clock, lambda: FOREIGN_S)

    @property
    def place(self) -> str:
        """Location of the files, for users."""
        return f"{self._files.location.base}/{self._run_id}"

    @property
    def reads_only(self) -> bool:
        """Whether nothing may be archived here."""
        return self._fence.reads_only

    @property
    def listed(self) -> frozenset[str]:
        """Stems of the parts that Redis lists, as far as this process knows."""
        return frozenset(self._listed)

    async def load(self) -> list[PartReader]:
        """Return the parts, oldest first."""
        if not self._fence.reads_only:
            await self._fence.write(("DEL", self._keys.parts_next))
        found: Any = await self._redis.hvals(self._keys.parts)
        parts = sorted((Part.from_json(data) for data in found), key=lambda part: stream_order(part.to_id))
        self._listed = {part.stem for part in parts}
        self._stems.clear()
        self._unlisted.list_again()
        return [self._reader(part) for part in parts]

    async def agrees(self) -> bool:
        """Return whether Redis holds this worker's last writes, and lists its parts. Call it after an outage.

        Raises:
            NotOwner: another worker has taken the run over meanwhile.
        """
        self._unlisted.list_again()
        found: Any = await self._redis.hkeys(self._keys.parts)
        return {stem.decode() for stem in found} == self._listed and await self._fence.holds()

    async def check_place(self) -> None:
        """Check that the files of the run are where they should be; a run without parts has none.

        A disk that is not mounted is an empty folder. To go on would make the run again with another lineage, or write
        under the mount point.

        Raises:
            ArchiveError: nothing of the run is there.
        """
        if self._listed and not await in_thread(lambda: self._files.location.names(self._run_id)):
            raise ArchiveError(
                f"no file of run {self._run_id} is at {self.place}: expected those of {len(self._listed)} parts",
                hint="mount the archive, or correct --archive-url; it is tried again. Are they lost for good, put any "
                "file there: the run goes on without them",
                code="archive_away",
            )

    def _reader(self, part: Part) -> PartReader:
        return PartReader(self._files.location, self._run_id, part, self._files.cache)

    # --- writing -------------------------------------------------------------------------------------------------

    async def archive(self, generations: Sequence[Generation]) -> PartReader:
        """Make a part of sealed generations and trim the stream; return the part.

        Raises:
            ArchiveError: a file could not be written. Nothing changed; try again later.
            PartsChanged: Redis lists other parts than this process knows. Nothing changed.
            RedisError: Redis is away. It may have happened or not: the same call again is right, another is not.
        """
        from_id, to_id = generations[0].from_id, generations[-1].to_id
        stem = self._stem(from_id, to_id)
        try:
            part = await self._archived(stem, from_id, to_id, generations)
        except ArchiveError:
            del self._stems[(from_id, to_id)]  # certainly not listed
            raise
        del self._stems[(from_id, to_id)]
        _log.info("run %s: archived %d rows up to %s in %d bytes", self._run_id, part.rows, to_id, part.bytes)
        return self._reader(part)

    async def _archived(self, stem: str, from_id: str, to_id: str, generations: Sequence[Generation]) -> Part:
        async with self._files.writing:
            done: Any = await self._redis.hget(self._keys.parts, stem)
            if done is None:
                await self.check_place()
                frames = [frame async for frame in entries_between(self._redis, self._keys.frames, from_id, to_id)]
                expected = sum(generation.frames for generation in generations)
                if len(frames) != expected:
                    raise PartsChanged(
                        f"Redis holds {len(frames)} frames of run {self._run_id} up to {to_id}, expected {expected}",
                        hint="Redis has lost its newest writes; the run is taken up from what it has",
                    )
                part = await self._write(stem, from_id, to_id, generations, frames)
                try:
                    await self._commit((), (part,), trim_to=to_id)
                except NotOwner:
                    await self._drop(stem)
                    raise
            else:
                part = Part.from_json(done)
                self._listed.add(stem)
            return part

    async def again(self, old: Part, generation: Generation, frames: list[tuple[str, bytes]]) -> PartReader:
        """Write the same range as ``old`` from frames that were folded again; it counts after ``replace``."""
        async with self._files.writing:
            stem = self._stem(old.from_id, old.to_id)
            part = await self._write(stem, old.from_id, old.to_id, [generation], frames)
            await self._fence.write(("HSET", self._keys.parts_next, stem, part.as_json()))
        self._stems.pop((old.from_id, old.to_id), None)
        return self._reader(part)

    async def replace(self, old: Sequence[PartReader], new: Sequence[PartReader]) -> None:
        """Let the parts ``new`` take the place of ``old`` in the list, all or nothing; ``sweep`` removes the files.

        Raises:
            PartsChanged: Redis lists other parts than this process knows. Nothing changed.
        """
        await self._commit([reader.part for reader in old], [reader.part for reader in new])

    async def _commit(self, old: Sequence[Part], new: Sequence[Part], trim_to: str = "") -> None:
        # Lists and notes are compared: a Redis that restarted without its newest writes may not lose frames that it
        # has again in the stream, and a worker that took over, which takes our new files for garbage, may not have
        # removed them.
        gone = [part.stem for part in old]
        try:
            await self._fence.commit(
                self._listed, gone, [(part.stem, part.as_json()) for part in new], next_id(trim_to) if trim_to else ""
            )
        except CommitRefused as error:
            if error.stem:
                self._unlisted.list_again()
                raise ArchiveError(
                    f"the files of {error.stem} of run {self._run_id} were removed before they were listed",
                    hint="the part is written again",
                ) from error
            raise PartsChanged(
                f"Redis lists {error.listed} parts of run {self._run_id}, expected the {len(self._listed)} that this "
                "server knows",
                hint="Redis has lost its newest writes; the run is taken up from what it has",
            ) from error
        self._listed = (self._listed - set(gone)) | {part.stem for part in new}
        self._noted.update(gone)

    def mergeable(self, readers: Sequence[PartReader], *, everything: bool = False) -> list[PartReader]:
        """Return adjacent parts that should become one, none where there are none.

        Args:
            everything: as many as a part may hold, for the command; else MERGE_PARTS of one size.
        """
        for i in range(len(readers)):
            group = list(readers[i:]) if everything else list(readers[i : i + MERGE_PARTS])
            while group and (
                sum(reader.part.rows for reader in group) > MAX_ROWS
                or sum(reader.part.bytes for reader in group) > MAX_BYTES
            ):
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
            await self._note(stem)
            created = self._files.clock()
            cuts = self._cuts()
            part = await in_thread(lambda: compact(self._files.location, self._run_id, group, stem, created, cuts))
            reader = self._reader(part)
            await self.replace(group, [reader])  # before anybody sweeps
        return reader

    async def delete(self) -> None:
        """Remove all files of the run. Its keys are the caller's."""
        found: Any = await self._redis.hkeys(self._keys.parts)
        stems = [("SADD", self._keys.garbage, stem) for stem in found]
        await self._fence.write(*stems, ("DEL", self._keys.parts), ("DEL", self._keys.parts_next))
        self._listed.clear()
        self._stems.clear()
        await self.sweep(of_others=True)

    async def sweep(self, *, of_others: bool = False) -> bool:
        """Remove the files of stems that no part names. A file that can't be removed now stays noted for the next time.

        Redis does not fence a file: a worker that was stalled may be writing one still, until it finds that the run
        is no longer its own. So files of others stay for FOREIGN_S.

        Args:
            of_others: also stems noted only now, or by no process.

        Returns:
            Whether something is left for later.
        """
        await self._unlisted.list_files(now=of_others)
        async with self._files.writing:  # files being written are named by no part yet
            garbage = await self._noted_stems()
            if self._unlisted:
                garbage.update(await self._note_unlisted(garbage, everything=of_others))
            left = len(self._unlisted) > 0
            for stem in garbage:
                if await self._redis.hexists(self._keys.parts, stem):
                    await self._fence.write(("SREM", self._keys.garbage, stem))
                elif stem in self._listed or stem in self._stems.values():
                    continue  # it is not sure yet
                elif of_others or self._fence.was_free or stem in self._noted or self._is_old(stem):
                    await self._remove(stem)
                else:
                    left = True
        return left

    async def _noted_stems(self) -> set[str]:
        found: Any = await self._redis.sunion([self._keys.garbage, self._keys.sweeping])
        return {stem.decode() for stem in found}

    async def _note_unlisted(self, garbage: set[str], *, everything: bool) -> list[str]:
        """Note the files that lie there, are in no list, and may go; return them."""
        parts: Any = await self._redis.hkeys(self._keys.parts)
        known = garbage.union(self._stems.values(), (stem.decode() for stem in parts))
        stems = await self._unlisted.may_go(known, everything=everything)
        for stem in stems:
            await self._note(stem)
        return stems

    def _is_old(self, stem: str) -> bool:
        now = self._files.clock()
        seen = self._foreign.setdefault(stem, now)
        return not seen <= now < seen + FOREIGN_S

    async def _remove(self, stem: str) -> None:
        await self._fence.write(("SREM", self._keys.garbage, stem), ("SADD", self._keys.sweeping, stem))
        try:
            await in_thread(lambda: Part.delete_files(self._files.location, self._run_id, stem))
        except ArchiveError as error:
            _log.warning("run %s: old files stay for now: %s", self._run_id, error.message)
        else:
            await self._fence.write(("SREM", self._keys.sweeping, stem))
            self._noted.discard(stem)
            self._foreign.pop(stem, None)

    async def _drop(self, stem: str) -> None:
        """Remove files written for a run that has a new owner, which may not have them on record."""
        with contextlib.suppress(RedisError, OSError, ArchiveError):
            if not await self._redis.hexists(self._keys.parts, stem):  # an earlier try may have listed them
                await in_thread(lambda: Part.delete_files(self._files.location, self._run_id, stem))

    async def _note(self, stem: str) -> None:
        await self._fence.write(("SADD", self._keys.garbage, stem))
        self._noted.add(stem)

    async def _write(
        self, stem: str, from_id: str, to_id: str, generations: Sequence[Generation], frames: list[tuple[str, bytes]]
    ) -> Part:
        await self._note(stem)
        created, cuts = self._files.clock(), self._cuts()

        def write() -> Part:
            frozen = generations[-1].state
            assert frozen is not None
            series = chain.from_iterable(generation.contents() for generation in generations)
            return write_part(
                self._files.location, self._run_id, stem, from_id=from_id, to_id=to_id,
                series=series, frames=frames, state=snapshot.seal(frozen), created=created, cuts=cuts,
            )  # fmt: skip

        return await in_thread(write)

    def _stem(self, from_id: str, to_id: str) -> str:
        return self._stems.setdefault((from_id, to_id), self._new_stem(from_id, to_id))

    def _new_stem(self, from_id: str, to_id: str) -> str:
        """Return a name that no other files have: a range is written again at another time."""
        return f"{from_id}_{to_id}-{self._files.token()}"


def _size(rows: int) -> int:
    """Return 0 for the smallest parts, 1 for those up to MERGE_PARTS times larger, and so on."""
    size = 0
    while rows >= SMALL_ROWS * MERGE_PARTS**size:
        size += 1
    return size
