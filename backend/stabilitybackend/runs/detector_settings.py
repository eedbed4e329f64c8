"""Settings of a run's detectors: who changed them, when, and from which frame of the stream on they hold.

A change holds from the stream position at which it was saved, never before it: past verdicts stay. The worker
applies, before each frame, the newest change at or before that frame's stream id. So folding the same frames again
(after a restart, an undone segment, or from archived frames) configures the detectors at the same frames and comes to
the same state and the same incidents.

Without an owner the position of judging is unknown. So a change made then waits, without a position,
and the next owner gives it one: that behind the newest frame which it has judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace
from redis.exceptions import RedisError

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.keys import MAX_REPORTS, RunKeys
from stabilitybackend.base.streams import next_id, stream_order
from stabilitybackend.judging.detectors.engine.base import DetectorSettingError
from stabilitybackend.judging.detectors.registry import DETECTORS, Settings, check_settings
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.ownership.fence import Fence, Write
from stabilitybackend.schema.detectors import DetectorChange, RunDetectors
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["MAX_CHANGES", "DetectorSettings", "checked"]

#: Changes kept of a run, newest ones. Frames older than the oldest of them are folded again with the defaults.
MAX_CHANGES = 100
#: Characters shown of an error in settings: it quotes the given value, whatever its length.
MAX_ERROR_CHARS = 400

_log = logging.getLogger(__name__)


class _Configurable(Protocol):
    def configure(self, settings: Settings) -> None: ...


class DetectorSettings:
    """The changes of one run, and the fold's way through them.

    Args:
        patiently: does something with Redis, again and again while it is away.
        channel: the run's browsers, which get each change.
        clock: unix seconds now.
    """

    def __init__(
        self,
        run_id: str,
        fence: Fence,
        patiently: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        channel: Channel,
        clock: Callable[[], float],
    ) -> None:
        self._run_id = run_id
        self._fence = fence
        self._redis = fence.redis
        self._keys = RunKeys(run_id)
        self._patiently = patiently
        self._channel = channel
        self._clock = clock
        self._changes: list[DetectorChange] = []
        #: On their way to Redis: they hold already, and must not be missing from a read meanwhile.
        self._pending: list[DetectorChange] = []
        self._storing = asyncio.Lock()
        #: Changes that wait for an owner when it was looked last, oldest first, and how each is stored.
        self._waiting: list[tuple[bytes, DetectorChange]] = []
        self._taking = asyncio.Lock()
        #: The state that is being folded, and how many changes it has behind it.
        self._judge: _Configurable | None = None
        self._applied = 0

    async def load(self) -> None:
        """Take up the stored settings. Names and values that this version does not have are left out."""
        async with self._storing:
            stored: list[DetectorChange] = await self._patiently(self._stored)
            changes = [*stored, *(change for change in self._pending if change not in stored)]
            # Of two at one position the one that was stored later counts.
            self._changes = sorted(changes, key=lambda change: stream_order(change.position))
            self._judge = None
        await self._patiently(self.load_waiting)

    async def load_waiting(self) -> None:
        """See which changes wait. Raises RedisError when Redis is away."""
        self._waiting = await self._read(self._keys.settings_waiting)

    async def refresh(self) -> None:
        """Take up the settings that the owner has stored meanwhile; unchanged while Redis is away."""
        with contextlib.suppress(RedisError, OSError):
            await self.load_waiting()
            if await self._stored() != self._changes:
                await self.load()

    async def _stored(self) -> list[DetectorChange]:
        changes: list[DetectorChange] = []
        for _, change in await self._read(self._keys.detector_settings):
            if change not in changes[-1:]:  # stored twice when an answer of Redis was lost
                changes.append(change)
        return changes

    async def _read(self, key: str) -> list[tuple[bytes, DetectorChange]]:
        found: Any = await self._redis.lrange(key, 0, -1)
        changes = [(data, msgspec.json.decode(data, type=DetectorChange)) for data in found]
        return [(data, replace(one, settings=self._usable(one.settings))) for data, one in changes]

    def _usable(self, settings: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        usable: dict[str, dict[str, float]] = {}
        for detector, values in settings.items():
            for name, value in values.items():
                together = {**usable, detector: {**usable.get(detector, {}), name: value}}
                try:
                    usable = check_settings(together)
                except DetectorSettingError as error:
                    _log.warning("run %s: a stored setting is left out: %s", self._run_id, error)
        return usable

    def settled(self, judge: _Configurable) -> bool:
        """Return whether the detectors of ``judge`` stay as they are configured, whatever frames come."""
        return judge is self._judge and self._applied == len(self._changes)

    def apply(self, judge: _Configurable, frame_id: str) -> None:
        """Configure the detectors of ``judge`` as of the frame ``frame_id``; call it before folding.

        Args:
            judge: a new one is configured from the start, whatever its snapshot held.
            frame_id: never smaller than in the call before with the same judge.
        """
        if judge is not self._judge:
            self._judge, self._applied = judge, 0
        if self._applied == len(self._changes):
            return
        at, before = stream_order(frame_id), self._applied
        while self._applied < len(self._changes) and stream_order(self._changes[self._applied].position) <= at:
            self._applied += 1
        if self._applied > before:
            judge.configure(self._changes[self._applied - 1].settings)

    async def replace(self, settings: object, who: str, cursor: str) -> RunDetectors:
        """Put ``settings`` in the place of all overrides, for all after ``cursor``; store it and notify browsers.

        Args:
            settings: detector -> parameter -> number; {} brings all defaults back.
            cursor: stream id of the newest frame that was folded.

        Returns:
            Result of ``shown`` after it.

        Raises:
            BadRequest: a name is unknown or a number is out of range; nothing changed.
            Unavailable: the run has no owner, and Redis is away.
        """
        change = DetectorChange("", checked(settings), who, self._clock())
        if self._fence.reads_only:
            await self._put(change)
        else:
            await self.take_waiting(cursor)  # in order of arrival
            if not self._is_set(change):
                await self._add(change, cursor)
        shown = self.shown()
        self._channel.publish({"type": "detectors", "detectors": shown}, cursor)
        return shown

    def _is_set(self, change: DetectorChange) -> bool:
        """Whether the newest change is this one, which was sent again as its answer got lost."""
        newest = self._every()[-1:]
        return [(one.settings, one.who) for one in newest] == [(change.settings, change.who)]

    async def _put(self, change: DetectorChange) -> None:
        """Let a change wait for the next owner, and note it for one that has just come."""
        with redis_errors():
            await self.load_waiting()
            if not self._is_set(change):
                pipe = self._redis.pipeline(transaction=True)
                pipe.rpush(self._keys.settings_waiting, msgspec.json.encode(change))
                pipe.ltrim(self._keys.settings_waiting, -MAX_CHANGES, -1)
                pipe.xadd(self._keys.reports, {"o": "settings"}, maxlen=MAX_REPORTS, approximate=True)
                await pipe.execute()
                await self.load_waiting()

    async def take_waiting(self, cursor: str) -> None:
        """Give changes that waited for an owner their position, behind ``cursor``, and store them.

        Raises:
            NotOwner: the run has another owner.
        """
        async with self._taking:  # a tick and a request would each take all
            while self._waiting:
                data, change = self._waiting[0]
                await self._add(change, cursor, ("LREM", self._keys.settings_waiting, 0, data))
                # A concurrent reader has read anew which wait.
                self._waiting = [one for one in self._waiting if one[0] != data]
                self._channel.publish({"type": "detectors", "detectors": self.shown()}, cursor)

    async def _add(self, waited: DetectorChange, cursor: str, *more: Write) -> None:
        """Let a change hold for all after ``cursor``, and store it, with ``more`` in the same write."""
        change = replace(waited, position=next_id(cursor))
        # Before the write: frames that arrive meanwhile are folded with it already, as they will be again.
        self._changes.append(change)
        self._pending.append(change)
        data = msgspec.json.encode(change)

        async def store() -> None:
            await self._fence.write(
                ("RPUSH", self._keys.detector_settings, data),
                ("LTRIM", self._keys.detector_settings, -MAX_CHANGES, -1),
                ("XADD", self._keys.command_audit, "*", "d", data),
                *more,
            )

        try:
            async with self._storing:
                await self._patiently(store)
        finally:
            self._pending.remove(change)
        over = max(0, len(self._changes) - MAX_CHANGES)
        del self._changes[:over]
        self._applied = max(0, self._applied - over)
        _log.info("run %s: detectors set to %s by %s", self._run_id, change.settings, change.who)

    def shown(self) -> RunDetectors:
        """Return the settings of the next frames, and the changes that led to them; waiting ones are the newest."""
        changes = self._every()[::-1]
        return RunDetectors(changes[0].settings if changes else {}, changes)

    def _every(self) -> list[DetectorChange]:
        return [*self._changes, *(change for _, change in self._waiting)]


def checked(settings: object) -> dict[str, dict[str, float]]:
    """Return settings that users sent as numbers, without values equal to their defaults.

    Raises:
        BadRequest: a name is unknown or a number is out of range; with the given value and the expected ones.
    """
    try:
        found = check_settings(settings)
    except DetectorSettingError as error:
        message = str(error).strip()[:MAX_ERROR_CHARS]
        raise BadRequest(message, hint="GET /api/v1/detectors lists them", code="bad_setting") from error
    differing = {
        name: {key: value for key, value in values.items() if value != DETECTORS[name]().parameters[key].default}
        for name, values in found.items()
    }
    return {name: values for name, values in differing.items() if values}
