"""Whose archive this is: a small file in it and a key of Redis hold the same id of an installation.

Redis lists the files of an archive, and no file names its Redis. Two installations on one bucket
write there unseen, and neither finds the runs of the other; nor does one whose Redis was lost. So both are
refused at the start, with a sentence on the remedy. Nothing that another installation wrote is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import ArchiveError, StartError
from stabilitybackend.base.keys import INSTALLATION, RUNS, RunKeys
from stabilitybackend.base.settings import Settings
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.storage.archive.location import INSTALLATION_FILE, Location, open_location
from stabilitybackend.storage.redis_link import as_unavailable, shown_url

__all__ = ["Installation"]

#: How long a start waits for the archive to say whose it is, seconds: a store that is away keeps no server from it.
START_S = 3.0
#: How often it is asked again where it did not answer, and how often Redis is looked at, seconds.
AGAIN_S = 30.0
#: Newest runs among which one with archived files is looked for, and such runs whose files are looked for.
_RUNS, _ARCHIVED_RUNS = 1_000, 8

#: How a file is read without holding up the event loop.
_Reading = Callable[[Callable[[], str | None]], Awaitable[str | None]]
_NOTE = "Stabilityboard archives the runs of one installation here. Leave this file where it is."
_log = logging.getLogger(__name__)


class _Marker(msgspec.Struct):
    """The file in the archive; ``created`` is unix seconds."""

    installation: str
    created: float
    note: str = _NOTE


@dataclass(frozen=True, slots=True)
class _Ids:
    """Ids in Redis and in the archive; None: nothing."""

    redis: str | None
    archive: str | None


class Installation:
    """The installation that this process works for.

    Args:
        location: of the archive.
        redis_name: for users: Redis at redis://host:6379.
        new_id: a word that was never used before.
        clock: unix seconds.

    Attributes:
        id: of the installation, once Redis and the archive agree on it.
        refused: why this process has to stop, empty while all is well.
    """

    def __init__(
        self,
        location: Location,
        redis_name: str,
        *,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._location = location
        self._redis_name = redis_name
        self._new_id = new_id
        self._clock = clock
        self.id: str | None = None
        self.refused = ""
        self._said = ""

    @classmethod
    def of(cls, settings: Settings) -> Installation:
        """Return that of the archive and the Redis that the settings name; nothing is touched yet."""
        url = settings.redis_url
        name = f"the embedded Redis in {settings.data_dir}" if url is None else f"Redis at {shown_url(url)}"
        return cls(open_location(settings.archive), name)

    async def begin(self, redis: Redis, wait_s: float = START_S) -> None:
        """Settle the owner of this archive as far as possible within ``wait_s``; ``follow`` does the rest.

        Raises:
            StartError: the archive is another installation's.
        """
        await self._settle(redis, lambda work: _answered(work, wait_s))

    async def follow(self, redis: Redis) -> None:
        """Settle it as soon as archive and Redis answer, then keep the id in Redis, until cancelled.

        A Redis that comes back empty under a running server gets its id again. One that is another installation's, or
        an archive that turns out to be, ends this process.
        """
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                await self._settle(redis, in_thread)
            except StartError as error:
                self.refused = error.message
                _log.error("%s: this server stops. %s", error.message, error.hint)
                signal.raise_signal(signal.SIGTERM)
                return

    async def compare(self, redis: Redis) -> str | None:
        """Return the id on which Redis and the archive agree, None where one of them has none; change nothing.

        Raises:
            StartError: the archive is another installation's.
            ArchiveError, RedisError: one of them does not answer.
        """
        ids = await self._ids(redis, in_thread)
        await self._check(redis, ids)
        return ids.redis if ids.redis == ids.archive else None

    async def adopt(self, redis: Redis) -> str:
        """Let this Redis go on in the archive of an installation whose Redis is lost; return its id.

        Raises:
            StartError: the archive is unclaimed, or Redis is that of another installation.
        """
        ids = await self._ids(redis, in_thread)
        if ids.archive is None:
            raise StartError(
                f"the archive {self._location} belongs to no installation yet", hint="start the server, it takes it"
            )
        found = await self._claim(redis, ids.archive)
        if found != ids.archive:
            raise self._of_two(found, ids.archive)
        return found

    async def _settle(self, redis: Redis, read: _Reading) -> None:
        try:
            if self.id is not None:
                here = await self._claim(redis, self.id)
                if here != self.id:
                    raise self._of_two(here, self.id)
                return
            ids = await self._ids(redis, read)
            await self._check(redis, ids)
            here = ids.redis or await self._claim(redis, ids.archive or self._new_id())
            there = ids.archive or await self._written(redis, here)
        except (ArchiveError, TimeoutError) as error:
            self._unknown(str(error) or "it does not answer")
            return
        except (RedisError, OSError) as error:
            if (away := as_unavailable(error)) is None:
                raise
            self._unknown(away.message)
            return
        if there is not None and here != there:
            raise self._of_two(here, there)
        self.id = there

    async def _ids(self, redis: Redis, read: _Reading) -> _Ids:
        archive = await read(self._read)  # before Redis: of concurrent starts, Redis has it first
        found: Any = await redis.get(INSTALLATION)
        return _Ids(None if found is None else found.decode(), archive)

    async def _check(self, redis: Redis, ids: _Ids) -> None:
        """Raise StartError where the archive is another's than that of this Redis."""
        if ids.archive is None or ids.redis == ids.archive:
            return
        if ids.redis is not None:
            raise self._of_two(ids.redis, ids.archive)
        if await self._files_are_here(redis):
            return  # a Redis from before there were ids, or from a backup of that time
        has_runs = bool(await redis.zcard(RUNS))
        holds = "knows none of the runs in it" if has_runs else "holds no run"
        raise StartError(
            f"the archive {self._location} belongs to installation {ids.archive}, and {self._redis_name} {holds}",
            hint="a new installation needs an archive of its own (another --archive-url or --data-dir). Was the Redis "
            "of this one lost, restore its backup; without one `stabilityboard archive adopt` lets an empty Redis go "
            "on beside the old files",
            code="foreign_archive",
        )

    def _of_two(self, here: str, there: str) -> StartError:
        return StartError(
            f"{self._redis_name} belongs to installation {here}, the archive {self._location} to installation "
            f"{there}: two installations would write into one archive",
            hint="give this server an archive of its own (another --archive-url or --data-dir), or the Redis of that "
            "archive (--redis-url)",
            code="foreign_archive",
        )

    async def _claim(self, redis: Redis, wanted: str) -> str:
        """Return the id in Redis, which is ``wanted`` where it had none: of two concurrent starts one decides."""
        await redis.set(INSTALLATION, wanted, nx=True)
        found: Any = await redis.get(INSTALLATION)
        return wanted if found is None else str(found.decode())

    async def _written(self, redis: Redis, own: str) -> str | None:
        """Return the archive's id after an offer of this installation's; None where it can't be marked now."""
        if await self._files_are_here(redis) is False:
            return None  # a disk that is not mounted: nothing is written under its mount point
        marker = msgspec.json.encode(_Marker(own, self._clock()))
        await in_thread(lambda: self._location.create_bytes(INSTALLATION_FILE, marker))
        return await in_thread(self._read)

    def _read(self) -> str | None:
        try:
            data = self._location.read_bytes(INSTALLATION_FILE)
        except ArchiveError as error:
            if error.code == "archive_missing":
                return None
            raise
        try:
            return msgspec.json.decode(data, type=_Marker).installation
        except msgspec.MsgspecError as error:
            raise ArchiveError(
                f"{self._location.path(INSTALLATION_FILE)} says {data[:80]!r}: expected the id of an installation",
                hint="put it back from a backup; or remove it, and the next start writes it again",
                code="archive_damaged",
            ) from error

    async def _files_are_here(self, redis: Redis) -> bool | None:
        """Return whether files that Redis lists are in this archive; None where it lists none."""
        newest: Any = await redis.zrevrange(RUNS, 0, _RUNS - 1)
        found = None
        names = (name.decode() for name in newest)
        archived = [name for name in names if await redis.exists(RunKeys(name).parts)]
        for run_id in islice(archived, _ARCHIVED_RUNS):
            if await in_thread(lambda run_id=run_id: self._location.names(run_id)):  # type: ignore[misc]
                return True
            found = False
        return found

    def _unknown(self, why: str) -> None:
        if why != self._said:
            _log.warning("whose archive %s is, is not known yet: %s", self._location, why)
        self._said = why


async def _answered(work: Callable[[], str | None], wait_s: float) -> str | None:
    """Return the result of ``work``, done in a thread that is given up after that time.

    Raises:
        TimeoutError: it takes longer.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def say(found: str | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)

    def run() -> None:
        found, failed = None, None
        try:
            found = work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
            loop.call_soon_threadsafe(say, found, failed)

    # Not of a pool: the end of the program would wait for it.
    threading.Thread(target=run, name="archive-marker", daemon=True).start()
    return await asyncio.wait_for(answer, wait_s)
