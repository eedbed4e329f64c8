"""Output of the ranks of a run: the newest lines, in a trimmed stream of Redis, and the requests for them.

It is kept with the run in Redis and in no archive: lines help now, while they are watched, and go with the run.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from redis.asyncio import Redis

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.schema.job.output import OutputAnswer, PrintedLine
from stabilitybackend.schema.json_data import MAX_RANKS, NAME_CHARS
from stabilityclient.wire import MAX_STEP, Output, OutputLine

__all__ = ["MAX_LINES", "OutputLog", "OutputQuery"]

#: Messages kept of a run, newest ones, and bytes of text of one: together at most 16 MiB.
MAX_MESSAGES, MESSAGE_BYTES = 1_024, 16 * 1024
#: Bytes of text that a run may bring a second on average, and as a burst: of hundreds of nodes the first ones pass.
BYTES_PER_S, BURST_BYTES = 256 * 1024, 2 * 1024 * 1024
#: Characters kept of a line, and lines of one answer.
LINE_CHARS, MAX_LINES = 2_100, 1_000
_ERROR = re.compile(
    r"\b(?:Traceback \(most recent call last\)|\w*(?:Error|Exception)\b(?=[:(]|$)|ERROR|FATAL|CRITICAL"
    r"|Segmentation fault|core dumped|out of memory|OOM|Killed|panic|ChildFailedError)"
)
_WARNING = re.compile(r"\b(?:\w*Warning\b(?=:)|WARN(?:ING)?|NCCL WARN)\b")

_Kept = list[OutputLine]
_decode = msgspec.msgpack.Decoder(_Kept).decode


@dataclass(frozen=True)
class OutputQuery:
    """Which lines are asked for.

    Attributes:
        rank, stream: only of these, None for all. step: around it. after, before: beyond or up to a line's id.
        limit: at most so many; without any place the newest.
    """

    rank: int | None = None
    stream: Literal["out", "err"] | None = None
    step: int | None = None
    after: str | None = None
    before: str | None = None
    limit: int = 200


class OutputLog:
    """The lines of all runs."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        #: Run -> (bytes that may come now, when that was).
        self._room: dict[str, tuple[float, float]] = {}

    async def add(self, run_id: str, output: Output) -> None:
        """Keep lines. Raises RedisError when Redis is away."""
        lines = [_fitted(line) for line in output.lines if _usable(line)]
        size = sum(len(line.text) for line in lines)
        skipped = max(0, output.skipped) + (0 if self._may(run_id, size) else len(lines))
        lines = lines if skipped <= output.skipped else []
        if not lines and not skipped:
            return
        pipe = self._redis.pipeline(transaction=False)
        for some in _parts(lines) or [[]]:
            fields: Any = {"n": output.node[:NAME_CHARS], "b": msgspec.msgpack.encode(some), "k": skipped}
            pipe.xadd(RunKeys(run_id).output, fields, maxlen=MAX_MESSAGES, approximate=True)
            skipped = 0
        await pipe.execute()

    def _may(self, run_id: str, size: int) -> bool:
        now = time.monotonic()
        room, since = self._room.pop(run_id, (float(BURST_BYTES), now))
        room = min(BURST_BYTES, room + BYTES_PER_S * (now - since))
        self._room[run_id] = (room - size if size <= room else room, now)
        if len(self._room) > 10_000:
            del self._room[next(iter(self._room))]
        return size <= room

    async def has_lines(self, run_id: str) -> bool:
        """Return whether anything is kept of a run. Raises RedisError when Redis is away."""
        return bool(await self._redis.exists(RunKeys(run_id).output))

    async def read(self, run_id: str, query: OutputQuery, blamed: Collection[int] = ()) -> OutputAnswer:
        """Return lines; ``blamed``: ranks that open incidents blame. Raises RedisError when Redis is away."""
        found: Any = await self._redis.xrange(RunKeys(run_id).output)
        answer = await asyncio.to_thread(_answer, found, query)
        answer.first_rank = next((rank for rank in answer.ranks if rank in blamed), answer.first_rank)
        return answer


def _usable(line: OutputLine) -> bool:
    return 0 <= line.rank < 2**31 and line.stream in ("out", "err") and -1 <= line.step <= MAX_STEP and line.time > 0


def _fitted(line: OutputLine) -> OutputLine:
    return OutputLine(line.time, line.rank, line.stream, line.step, line.text[:LINE_CHARS])


def _parts(lines: Iterable[OutputLine]) -> list[list[OutputLine]]:
    parts: list[list[OutputLine]] = []
    size = MESSAGE_BYTES
    for line in lines:
        if size >= MESSAGE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(line)
        size += len(line.text.encode()) + 32
    return parts


def _answer(entries: list[tuple[bytes, dict[bytes, bytes]]], query: OutputQuery) -> OutputAnswer:
    lines: list[PrintedLine] = []
    ranks: set[int] = set()
    total = skipped = 0
    for entry, fields in entries:
        skipped += int(fields.get(b"k", 0))
        kept = _decode(fields[b"b"])
        total += len(kept)
        node = fields.get(b"n", b"").decode("utf-8", "replace")
        for place, line in enumerate(kept):
            ranks.add(line.rank)
            if query.rank not in (None, line.rank) or query.stream not in (None, line.stream):
                continue
            lines.append(_printed(f"{entry.decode()}.{place}", node, line))
    first, last, at = _window(lines, query)
    shown = lines[first:last]
    for one in shown:
        one.level = _level(one.text)
    listed = sorted(ranks)[:MAX_RANKS]
    lowest = listed[0] if listed else None
    return OutputAnswer(shown, listed, total, lowest, skipped, at, first > 0, last < len(lines))


def _printed(name: str, node: str, line: OutputLine) -> PrintedLine:
    stream: Literal["out", "err"] = "err" if line.stream == "err" else "out"
    return PrintedLine(name, line.time, line.rank, node, stream, None if line.step < 0 else line.step, line.text, "")


def _window(lines: list[PrintedLine], query: OutputQuery) -> tuple[int, int, str | None]:
    """Return which lines are shown, from the first up to the last, and the line at the step that was asked for."""
    limit = query.limit
    if query.after is not None:
        order = _order(query.after)
        first = next((at for at, line in enumerate(lines) if _order(line.id) > order), len(lines))
        return first, min(len(lines), first + limit), None
    if query.before is not None:
        order = _order(query.before)
        last = next((at for at, line in enumerate(lines) if _order(line.id) >= order), len(lines))
        return max(0, last - limit), last, None
    if query.step is None or not lines:
        return max(0, len(lines) - limit), len(lines), None
    # The last time that the rank was at this step, or at the nearest before it: after a rollback it comes again.
    reached = max((line.step for line in lines if line.step is not None and line.step <= query.step), default=None)
    at = 0 if reached is None else max(at for at, line in enumerate(lines) if line.step == reached)
    first = max(0, min(at - limit // 2, len(lines) - limit))
    return first, min(len(lines), first + limit), lines[at].id


def _order(name: str) -> tuple[int, int, int]:
    """Return an id as numbers; the lowest for one that is none."""
    stamp, _, rest = name.partition("-")
    number, _, place = rest.partition(".")
    try:
        return int(stamp), int(number or 0), int(place or 0)
    except ValueError:
        return (0, 0, 0)


def _level(text: str) -> Literal["error", "warning", ""]:
    if _ERROR.search(text):
        return "error"
    return "warning" if _WARNING.search(text) else ""
