"""Reads a run's frames again, as they were sent: the archived ones from files, the newest from Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from redis.asyncio import Redis

from stabilitybackend.base.errors import BadRequest, Unavailable
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import entries_between
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.archive.part import PartReader
from stabilitybackend.storage.redis_link import redis_errors
from stabilityclient.node_frames import frames_in
from stabilityclient.wire import BadMessage, Frame, PointsBlock

__all__ = ["Replay", "Stopped", "replay"]

#: Times that reading the stream is begun again because the archiver takes frames away, and the pause before that,
#: seconds: it has committed a part then and is about to show it.
TRIES = 20
TRY_AGAIN_S = 0.05
#: Pause of the reading thread after each frame, seconds: it lets the event loop of the live runs go first.
YIELD_S = 0.0001


class Stopped(Exception):
    """The frames are not wanted any more."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The frames of one run up to a moment.

    Args:
        parts: the archived ones, oldest first.
        newest: messages that were still in Redis, oldest first.
        values: values in all of them, about: a row of twelve metrics has twelve.
        undone: keys of inferred segments that a user undid.
    """

    run_id: str
    parts: tuple[PartReader, ...]
    newest: tuple[bytes, ...]
    values: int
    undone: frozenset[str]

    def read(self, start: int | None, most_values: int, stopped: Callable[[], bool]) -> Iterator[Frame]:
        """Yield the frames. Reads files: iterate in a thread.

        Args:
            start: leave points out whose step is smaller, whole blocks at a time; None for all.
            stopped: asked before each frame.

        Raises:
            Stopped: ``stopped`` returned True.
            BadRequest: there are more values.
            ArchiveError: a file can't be read.
        """
        left = most_values
        if start is None and self.values > most_values:
            raise self._too_many(self.values, most_values)
        for raw in self._messages(start):
            if stopped():
                raise Stopped
            try:
                frames = frames_in(raw)
            except BadMessage:
                continue  # the worker has named it in the log
            for frame in frames:
                frame.blocks = _from(frame, start)
                if frame.blocks:
                    left -= sum(len(block.values) // 8 for block in frame.blocks if isinstance(block, PointsBlock))
                    if left < 0:
                        raise self._too_many(None, most_values)
                    yield frame
            time.sleep(YIELD_S)

    def _messages(self, start: int | None) -> Iterator[bytes]:
        for part in self.parts:
            if start is None or any(extent.last_step >= start for extent in part.keys().values()):
                yield from (message for _, message in part.frames())
        yield from self.newest

    def _too_many(self, values: int | None, most: int) -> BadRequest:
        given = f"run {self.run_id} has {values:,} values" if values else f"these steps of run {self.run_id} have more"
        return BadRequest(
            f"{given}, expected at most {most:,} for one try",
            hint="try fewer of the newest steps: last_steps",
            code="too_many_points",
        )


def _from(frame: Frame, start: int | None) -> list[Any]:
    if start is None:
        return frame.blocks
    return [
        block
        for block in frame.blocks
        if not isinstance(block, PointsBlock) or int(np.frombuffer(block.steps, "<i8").max(initial=-1)) >= start
    ]


async def replay(redis: Redis, run_id: str, now: Callable[[], tuple[RunState, str]]) -> Replay:
    """Return the frames of a run as they are now, none missing and none twice.

    Args:
        now: returns its state and the stream id of the newest frame in it.

    Raises:
        Unavailable: Redis is away, or the archiver was always faster.
    """
    for _ in range(TRIES):
        state, cursor = now()
        store, parts = state.store, tuple(state.store.parts)
        after, expected = parts[-1].part.to_id if parts else "0-0", sum(one.frames for one in store.generations)
        with redis_errors():
            newest = [message async for _, message in entries_between(redis, RunKeys(run_id).frames, after, cursor)]
        if len(newest) == expected:
            return Replay(run_id, parts, tuple(newest), store.values, frozenset(state.fold.undone))
        await asyncio.sleep(TRY_AGAIN_S)
    raise Unavailable(f"run {run_id} is being archived", hint="try again in a moment", code="archiving")
