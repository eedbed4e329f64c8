"""A dump of every rank of the node: first the means that cost the job nothing, last a signal, and only where needed.

A heartbeat thread that beats brings the stacks itself. The signal is for processes whose interpreter is stuck:
``faulthandler`` reads the frames of all threads without the interpreter's lock, and while threads run that crashes the
process (CPython 3.11: after 2 to 118 dumps with six busy threads, never in 3,000 where all were blocked). It also
interrupts system calls and lets pending calls run, so samples after it show nothing about the time before.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from stabilityclient.agent.agent_events import within_limits
from stabilityclient.agent.commands.agent_commands import CommandToRun
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.watch.dump_signal import dump_signal_trouble
from stabilityclient.agent.watch.probes import Prober, children_of, tree_cpu_s
from stabilityclient.agent.watch.safe_files import read_object, read_part
from stabilityclient.agent.watch.visibility_gaps import Gap, grouped
from stabilityclient.rank_state.probe import MAX_STACK_CHARS
from stabilityclient.rollback.command_files import add_to_mailbox

__all__ = ["MAX_PART_CHARS", "StackTaker", "runs", "stack_events", "threads"]

#: Characters of JSON after which the next ranks go into another event, and which no event of several ranks passes: the
#: spool takes 256 KiB, and a rank alone is cut to fit if it must be (its stacks have 60,000 characters at most).
FULL_CHARS, MAX_PART_CHARS = 100_000, 240_000

_ADDRESS = re.compile(r"^(Current thread|Thread) 0x[0-9a-fA-F]+", re.MULTILINE)


def stack_events(request: str, ranks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the data of the ``stacks`` events (docs/wire.md) for one request.

    Args:
        request: id of the command.
        ranks: observations of each, with the text of its stacks under ``stack`` and the members of each process group
            as a list under ``collectives.pgs[].ranks``. Values of None are left out.
    """
    events: list[_Part] = []
    for each in ranks:
        # First: data of the job's side is of any depth.
        rank = within_limits(each)
        chars = events[-1].chars if events else FULL_CHARS
        if chars >= FULL_CHARS or chars + len(json.dumps(rank)) > MAX_PART_CHARS:
            events.append(_Part())
        events[-1].add(rank)
    return [{"request": request, **part.data()} for part in events]


def threads(text: str) -> list[str]:
    """Return the parts of a text in faulthandler's format: the head before the first thread, then each thread.

    They give the text again when they are joined, but for the addresses.
    """
    cuts = [match.start() for match in _ADDRESS.finditer(text)]
    edges = [0, *cuts, len(text)]
    parts = [text[begin:end] for begin, end in pairwise(edges) if end > begin]
    return [_ADDRESS.sub(r"\1 0x0", part, count=1) for part in parts]


def runs(members: list[int]) -> list[list[int]]:
    """Return numbers as runs ``[first, count, stride]``, in their order: one or few for a process group."""
    found: list[list[int]] = []
    for member in members:
        if found:
            first, count, stride = run = found[-1]
            if count == 1:
                run[1:] = [2, member - first]
                continue
            if member == first + count * stride:
                run[1] = count + 1
                continue
        found.append([member, 1, 0])
    return found


class _Part:
    """One event in the making."""

    def __init__(self) -> None:
        self.chars = 0
        self._threads = _ValueTable()
        self._groups = _ValueTable()
        self._ranks: list[dict[str, Any]] = []

    def add(self, rank: Mapping[str, Any]) -> None:
        """Take one rank."""
        entry = {name: value for name, value in rank.items() if value is not None}
        before = self._threads.chars + self._groups.chars
        if "stack" in entry:
            entry["stack"] = [self._threads.at(part) for part in threads(entry["stack"])]
        if "collectives" in entry:
            entry["collectives"] = self._collectives(entry["collectives"])
        self._ranks.append(entry)
        self.chars += len(json.dumps(entry)) + self._threads.chars + self._groups.chars - before

    def _collectives(self, found: Mapping[str, Any]) -> dict[str, Any]:
        # Written by the job's side, read from a file: unexpected shapes travel unchanged.
        groups = found.get("pgs")
        if not isinstance(groups, list):
            return dict(found)
        return {**found, "pgs": [self._groups.at(_group(each)) for each in groups]}

    def data(self) -> dict[str, Any]:
        """Return the data of the event without its request."""
        return {"threads": self._threads.values, "pgs": self._groups.values, "ranks": self._ranks}


class _ValueTable:
    """Different values in their order, and their characters as JSON."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.chars = 0
        self._known: dict[str, int] = {}

    def at(self, value: Any) -> int:
        """Return the place of a value that is exactly this one."""
        key = json.dumps(value)
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(value)
            self.chars += len(key)
        return self._known[key]


def _group(group: Any) -> Any:
    if not isinstance(group, dict):
        return group
    members = group.get("ranks")
    if not isinstance(members, list) or not all(type(member) is int for member in members):
        return group
    return {**group, "ranks": runs(members)}


#: Seconds between the two samples of /proc and the slots.
SAMPLE_S = 0.25
#: Longest wait for the answers of the heartbeat threads, seconds: they are asked once a second.
PROBE_S = 3.0
#: Longest wait for the stacks after the signal, seconds.
STACK_S = 1.0
#: A file that has grown and then stays so for this long is complete, seconds: it is written without a pause.
QUIET_S = 0.1
#: A heartbeat thread that has not beaten for so long will not answer either, seconds: something holds the interpreter's
#: lock.
HEARTBEAT_STALLED_S = 2.5
#: Bytes read of a dump's addition: 100 threads (faulthandler's own limit) of 100 frames.
MAX_STACK_BYTES = 2 * 1024 * 1024

_POLL_S = 0.02
_STOPPED = ("T", "t")
_THREAD = re.compile(r"\n(?:Current thread|Thread) 0x")


@dataclass(slots=True)
class _RankSample:
    """Facts about one rank while the sample continues."""

    source: Source
    sampled: float = 0.0
    proc: dict[str, Any] | None = None
    slot: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    stack: str | None = None
    stack_missing: str | None = None
    #: Where the signal's dump begins in the file, and its length at the last sample; -1: no signal was sent.
    begin: int = -1
    size: int = 0
    grew_at: float = 0.0

    @property
    def stalled_s(self) -> float:
        """Return for how long the heartbeat thread has not beaten, seconds."""
        return time.monotonic() - self.source.beat_at


class StackTaker:
    """Carries out ``dump_stacks``.

    Args:
        report: sends an event: ``report(kind, step, data)``.
    """

    def __init__(
        self,
        run_folder: Path,
        sources: Sources,
        report: Callable[[str, int | None, dict[str, Any]], None],
    ) -> None:
        self._probe = run_folder / "probe"
        self._sources = sources
        self._report = report
        self._no_recorder: list[tuple[Source, str]] = []

    async def carry_out(self, command: CommandToRun, over: bool = False) -> tuple[str, str]:
        """Sample all ranks, report it in ``stacks`` events, and return how that went. Takes 4.5 s at most."""
        samples = [_RankSample(source) for source in self._sources.living_ranks()]
        if not samples:
            return "failed", "no rank is alive on this node"
        await self._sample(samples)
        stuck = await self._ask_heartbeats(samples)
        await self._signal(stuck)
        step = max((sample.source.slot.step for sample in samples if sample.source.slot is not None), default=-1)
        for data in stack_events(command.command_id, map(_facts, samples)):
            self._report("stacks", step, data)
        self._no_recorder = [(sample.source, why) for sample in samples if (why := _recorder_trouble(sample))]
        seen = sum(sample.stack is not None for sample in samples)
        missing = sorted({sample.stack_missing for sample in samples if sample.stack_missing})
        return "acted", f"stacks of {seen} of {len(samples)} ranks" + (f"; {'; '.join(missing[:3])}" if missing else "")

    def gaps(self) -> list[Gap]:
        """Return which living ranks had no Flight Recorder at the newest sample: the place of their wait is unknown."""
        living = [(source, why) for source, why in self._no_recorder if source.alive]
        do = "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_TRACE_BUFFER_SIZE=2000 before init_process_group"
        return grouped("collectives", living, do)

    async def _sample(self, samples: list[_RankSample]) -> None:
        prober = Prober()
        for again in (False, True):
            if again:
                await asyncio.sleep(SAMPLE_S)
            for sample in samples:
                source = sample.source
                source.observe()
                sample.sampled = time.time()
                thread = source.slot.thread if source.slot is not None else 0
                if source.elsewhere:
                    continue
                sample.proc = prober.read(source.info.pid, source.ticks, thread) or sample.proc
        for sample in samples:
            if sample.proc is not None:
                sample.proc["children"] = children_of(sample.source.info.pid)
                sample.proc["tree_cpu_s"] = tree_cpu_s(sample.source.info.pid)
            sample.slot = _slot_facts(sample.source)

    async def _ask_heartbeats(self, samples: list[_RankSample]) -> list[_RankSample]:
        """Take the heartbeat threads' answers; return the ranks whose interpreter is stuck: they need a signal."""
        wanted = -1
        try:
            add_to_mailbox(str(self._probe))
            wanted = int.from_bytes(self._probe.read_bytes()[:8], "little")
            trouble = None
        except OSError as error:
            trouble = f"ranks can't be asked: {error.strerror or error}"
        waiting, stuck = [], []
        for sample in samples:
            why = _heartbeat_trouble(sample) or trouble
            if why is not None:
                sample.answer, sample.stack_missing = {"why": why}, why
            else:
                waiting.append(sample)
        deadline = time.monotonic() + PROBE_S
        while waiting:
            for sample in list(waiting):
                sample.source.observe()
                if sample.source.slot is not None and sample.source.slot.probe >= wanted:
                    self._take(sample, wanted, "its answer can't be read")
                elif sample.stalled_s > HEARTBEAT_STALLED_S:
                    sample.answer = {
                        "why": f"its heartbeat thread has been stuck for {sample.stalled_s:.0f} s: "
                        "something holds the interpreter's lock"
                    }
                    stuck.append(sample)
                elif time.monotonic() >= deadline:
                    self._take(sample, wanted, f"its heartbeat thread did not answer within {PROBE_S:g} s")
                else:
                    continue
                waiting.remove(sample)
            await asyncio.sleep(_POLL_S)
        return stuck

    def _take(self, sample: _RankSample, wanted: int, missing: str) -> None:
        try:
            answer = read_object(sample.source.folder / "probe.json")
        except (OSError, ValueError):
            answer = {}
        sample.answer = answer if answer.get("n") == wanted else {"why": missing}
        threads = sample.answer.get("threads")
        sample.stack = _cut(threads) if isinstance(threads, str) else None
        # Obstacle of the signal: needed as soon as the interpreter is stuck.
        trouble = dump_signal_trouble(sample.source)
        if sample.stack is not None:
            sample.stack_missing = trouble or None
        else:
            sample.stack_missing = f"{missing}; {trouble}" if trouble else missing

    async def _signal(self, samples: list[_RankSample]) -> None:
        for sample in samples:
            sample.stack_missing = self._send(sample)
        waiting = [sample for sample in samples if sample.begin >= 0]
        deadline = time.monotonic() + STACK_S
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            now = time.monotonic()
            for sample in list(waiting):
                size = _size(sample.source)
                if size > sample.size:
                    sample.size, sample.grew_at = size, now
                elif sample.size > sample.begin and now - sample.grew_at >= QUIET_S:
                    waiting.remove(sample)
        for sample in samples:
            if sample.begin >= 0:
                sample.stack = _appended(sample)
                if sample.stack is None:
                    state = (sample.proc or {}).get("state")
                    deep = ": it waits uninterruptibly in the kernel (state D)" if state == "D" else ""
                    sample.stack_missing = f"nothing was written within {STACK_S:g} s of the signal{deep}"

    def _send(self, sample: _RankSample) -> str | None:
        source = sample.source
        source.observe()
        if sample.stalled_s <= HEARTBEAT_STALLED_S:
            return "its interpreter began to run again in the meantime"
        sample.begin = sample.size = _size(source)
        trouble = dump_signal_trouble(source, send=True)
        if trouble:
            sample.begin = -1
        return trouble or None


def _heartbeat_trouble(sample: _RankSample) -> str | None:
    """Return why neither a heartbeat thread nor a signal can bring anything; None when it is worth to ask."""
    if sample.source.unreadable:
        return sample.source.unreadable
    if (sample.proc or {}).get("state") in _STOPPED:
        return "the process is stopped (state T): it can report nothing before it continues"
    return None


def _recorder_trouble(sample: _RankSample) -> str:
    """Return why the collectives of a rank are not seen though it is in a process group; empty elsewhere."""
    in_group = sample.source.info.world_size > 1 and sample.answer.get("group") is True
    return str(sample.answer.get("why") or "") if in_group else ""


def _slot_facts(source: Source) -> dict[str, Any]:
    slot = source.slot
    if slot is None or source.trouble:
        return {"trouble": source.trouble or "not there yet"}
    return {
        "step": slot.step,
        "step_start": slot.step_start,
        "phase": slot.phase,
        "phase_start": slot.phase_start,
        "expect_s": slot.expect_s,
        "beat": slot.beat,
        "beat_age_s": round(time.monotonic() - source.beat_at, 2),
        "pending": source.main_thread_pending,
    }


def _facts(sample: _RankSample) -> dict[str, Any]:
    info, answer = sample.source.info, sample.answer
    collectives = answer.get("collectives")
    return {
        "rank": info.rank,
        "source": info.source,
        "pid": info.pid,
        "sampled": sample.sampled,
        "proc": sample.proc,
        "slot": sample.slot,
        "stack": sample.stack,
        "stack_missing": sample.stack_missing,
        "collectives": collectives if isinstance(collectives, dict) else None,
        "collectives_missing": None if isinstance(collectives, dict) else str(answer.get("why") or "not known"),
    }


def _size(source: Source) -> int:
    try:
        return os.stat(source.folder / "stacks").st_size
    except OSError:
        return 0


def _appended(sample: _RankSample) -> str | None:
    try:
        data, _ = read_part(sample.source.folder / "stacks", sample.begin, MAX_STACK_BYTES)
    except OSError:
        return None
    text = data.decode("utf-8", "replace")
    return _cut(text) if text.strip() else None


def _cut(text: str) -> str:
    """Return the end of a text of stacks: the main thread comes last."""
    if len(text) <= MAX_STACK_CHARS:
        return text
    mark = "... the first threads are left out\n"
    kept = text[-(MAX_STACK_CHARS - len(mark)) :]
    header = _THREAD.search(kept)
    return mark + kept[header.start() + 1 :] if header else mark + kept
