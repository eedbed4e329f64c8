"""Finds files of a run that Redis does not list, and decides when they may go.

A power cut that takes Redis' newest second, or a failover, may take the note of a part's files together with their
place in the list. The frames are in the stream again, or their agents send them again, and are archived under another
name; the first files stay. They go once every frame in them is held under its number elsewhere. Nothing else removes
them: behind a Redis that was set back further, by a backup or an empty volume, they are the only copy.

No clock is compared with another one: not the store's, and not Redis'.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import Location
from stabilityclient.node_frames import frames_in
from stabilityclient.wire import BadMessage

__all__ = ["LOOK_AGAIN_S", "UnlistedFiles"]

#: Interval of listing the run's folder, apart from each possible loss of Redis, seconds: an object store
#: bills a listing. Files with unique contents are compared again as often.
LOOK_AGAIN_S = 3_600.0
#: Messages in one read.
_MESSAGES = 256
#: As ``RunArchive`` makes stems. A folder may hold other files, put there by users.
_STEM = re.compile(r"\d+-\d+_\d+-\d+-[A-Za-z0-9]+")

_log = logging.getLogger(__name__)


class UnlistedFiles:
    """Stems of a run that lie in its folder, and that no list in Redis has.

    Args:
        clock: unix seconds now.
        wait_s: how long they stay after they were first seen, seconds: a worker that is stalled may be writing them,
            and agents may be about to send their messages.
    """

    def __init__(
        self,
        run_id: str,
        redis: Redis,
        location: Location,
        clock: Callable[[], float],
        wait_s: Callable[[], float],
    ) -> None:
        self._run_id = run_id
        self._redis = redis
        self._location = location
        self._clock = clock
        self._wait_s = wait_s
        #: When each is compared, unix seconds.
        self._due: dict[str, float] = {}
        self._look_at = float("-inf")

    def __len__(self) -> int:
        return len(self._due)

    def list_again(self) -> None:
        """Let the folder be listed the next time: Redis may have lost something."""
        self._look_at = float("-inf")

    async def list_files(self, *, now: bool = False) -> None:
        """List the folder where that is due, or ``now``. Read the list of Redis after it, not before."""
        if not now and not self._reached(self._look_at):
            return
        try:
            names = await in_thread(lambda: self._location.names(self._run_id))
        except ArchiveError as error:
            self._log(error)
            return
        at = self._clock()
        self._look_at = at + LOOK_AGAIN_S
        stems = {stem for name in names if _STEM.fullmatch(stem := name.rpartition("/")[2].partition(".")[0])}
        self._due = {stem: self._due.get(stem, at + self._wait_s()) for stem in stems}

    async def may_go(self, known: Collection[str], *, everything: bool = False) -> list[str]:
        """Return the stems that may be removed, and forget them and those in ``known``; the others stay.

        Args:
            known: the list of Redis. everything: the run is deleted.
        """
        self._due = {stem: at for stem, at in self._due.items() if stem not in known}
        found = []
        for stem in [stem for stem, at in self._due.items() if everything or self._reached(at)]:
            try:
                goes = everything or await self._is_held(stem)
            except ArchiveError as error:
                self._log(error)
                goes = False
            if goes:
                _log.info("run %s: files that nobody knows are removed: %s", self._run_id, stem)
                del self._due[stem]
                found.append(stem)
            else:
                self._due[stem] = self._clock() + LOOK_AGAIN_S
        return found

    async def _is_held(self, stem: str) -> bool:
        """Return whether each frame of a part is held elsewhere. Raises ArchiveError.

        Redis takes the frames of a source in turn and leaves none out, so those up to its newest number are in the
        stream or in parts that are listed.
        """
        numbers = await in_thread(lambda: self._newest_numbers(stem))
        if not numbers:
            return True
        held: Any = await self._redis.hmget(RunKeys(self._run_id).last_seq, list(numbers))
        if all(int(number or 0) >= last for number, last in zip(held, numbers.values(), strict=True)):
            return True
        _log.warning("run %s: Redis does not know %s, and frames in it are nowhere else: it stays", self._run_id, stem)
        return False

    def _newest_numbers(self, stem: str) -> dict[str, int]:
        """Return the newest number of each source in the frames of a part, none where that file was never finished."""
        name, at, newest = Files.of(self._run_id, stem).frames, 0, dict[str, int]()
        while True:
            try:
                messages = self._location.read(name, ["frame"], at, _MESSAGES)["frame"].to_list()
            except ArchiveError as error:
                if error.code == "archive_missing":
                    return {}
                raise
            for message in messages:
                try:
                    frames = frames_in(message)
                except BadMessage:  # unreadable
                    continue
                for frame in frames:
                    newest[frame.source.source] = max(frame.last_seq, newest.get(frame.source.source, 0))
            at += len(messages)
            if len(messages) < _MESSAGES:
                return newest

    def _reached(self, at: float) -> bool:
        return not at - LOOK_AGAIN_S <= self._clock() < at  # else it is time, or the clock was put back

    def _log(self, error: ArchiveError) -> None:
        _log.warning("run %s: files that nobody knows stay for now: %s", self._run_id, error.message)
