"""A close look at every rank of the node: first what costs the job nothing, last the signal that yields its stacks.

The order matters: a signal interrupts system calls and lets pending calls run, so what is sampled after it says
nothing about what was before. Needs neither the interpreter's lock nor a thread that still runs.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabilityclient.agent.blind import BlindSpot, grouped
from stabilityclient.agent.dump_signal import send_dump_signal
from stabilityclient.agent.health import living_ranks
from stabilityclient.agent.probes import Prober, children_of
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.boundary import add_to_mailbox
from stabilityclient.sidecar import read_json
from stabilityclient.slot import SlotView

__all__ = ["MAX_STACK_CHARS", "StackTaker"]

#: Seconds between the two samples of /proc and the slots.
SAMPLE_S = 0.25
#: Longest wait for the answers of the heart threads, seconds: they look once a second.
PROBE_S = 1.6
#: Longest wait for the stacks after the signal, seconds.
STACK_S = 1.0
#: A file that has grown and then stays so for this long is complete, seconds: it is written without a pause.
QUIET_S = 0.1
#: A heart that has not beaten for so long will not answer either, seconds.
HEART_STANDS_S = 3.0
#: Longest text of stacks, characters. The main thread stands last, so the beginning goes.
MAX_STACK_CHARS = 60_000
#: Bytes read of what a dump appended: 100 threads (faulthandler's own limit) of 100 frames.
MAX_STACK_BYTES = 2 * 1024 * 1024

_POLL_S = 0.02
_STOPPED = ("T", "t")
_THREAD = re.compile(r"\n(?:Current thread|Thread) 0x")


@dataclass(slots=True)
class _Look:
    """What is known about one rank while the look goes on."""

    source: Source
    sampled: float = 0.0
    proc: dict[str, Any] | None = None
    slot: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    stack: str | None = None
    stack_missing: str | None = None
    #: Where what the signal brings begins in the file, and how long it was at the last look; -1: no signal was sent.
    begin: int = -1
    size: int = 0
    grew_at: float = 0.0


class StackTaker:
    """Carries out ``dump_stacks``.

    Args:
        run_folder: of the run on this node. sources: its ranks.
        descriptor: returns the pidfd of a rank, None where there is none.
        tell: sends an event: ``tell(kind, step, data)``.
    """

    def __init__(
        self,
        run_folder: Path,
        sources: Sources,
        descriptor: Callable[[Source], int | None],
        tell: Callable[[str, int | None, dict[str, Any]], None],
    ) -> None:
        self._probe = run_folder / "probe"
        self._sources = sources
        self._descriptor = descriptor
        self._tell = tell
        self._no_recorder: list[tuple[Source, str]] = []

    async def carry_out(self, command: dict[str, Any]) -> tuple[str, str]:
        """Look at all ranks, send one ``stacks`` event each, and return how that went. Takes 3 s at most."""
        looks = [_Look(source) for source in living_ranks(self._sources)]
        if not looks:
            return "failed", "no rank lives on this node"
        await self._sample(looks)
        await self._ask_hearts(looks)
        await self._signal(looks)
        for look in looks:
            slot = look.source.slot
            step = slot.step if slot is not None and slot.step >= 0 else None
            self._tell("stacks", step, _event(str(command["command_id"]), look))
        self._no_recorder = [(look.source, why) for look in looks if (why := _recorder_trouble(look))]
        seen = sum(look.stack is not None for look in looks)
        missing = sorted({look.stack_missing for look in looks if look.stack_missing})
        return "acted", f"stacks of {seen} of {len(looks)} ranks" + (f"; {'; '.join(missing[:3])}" if missing else "")

    def blind(self) -> list[BlindSpot]:
        """Return which living ranks had no Flight Recorder at the newest look: what they wait in can't be told."""
        living = [(source, why) for source, why in self._no_recorder if source.alive]
        do = "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_TRACE_BUFFER_SIZE=2000 before init_process_group"
        return grouped("collectives", living, do)

    async def _sample(self, looks: list[_Look]) -> None:
        prober = Prober()
        for again in (False, True):
            if again:
                await asyncio.sleep(SAMPLE_S)
            for look in looks:
                source = look.source
                source.observe()
                thread = source.slot.thread if source.slot is not None else 0
                look.proc = prober.look(source.info.pid, source.ticks, thread) or look.proc
                look.sampled = time.time()
        for look in looks:
            if look.proc is not None:
                look.proc["children"] = children_of(look.source.info.pid)
            look.slot = _slot_facts(look.source)

    async def _ask_hearts(self, looks: list[_Look]) -> None:
        try:
            add_to_mailbox(str(self._probe))
            wanted = int.from_bytes(self._probe.read_bytes()[:8], "little")
        except OSError as error:
            for look in looks:
                look.answer = {"why": f"ranks can't be asked: {error.strerror or error}"}
            return
        waiting = []
        for look in looks:
            why = _heart_trouble(look)
            look.answer = {"why": why}
            if why is None:
                waiting.append(look)
        deadline = time.monotonic() + PROBE_S
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            for look in list(waiting):
                look.source.observe()
                if look.source.slot is not None and look.source.slot.probe >= wanted:
                    look.answer = read_json(str(look.source.folder / "probe.json"))
                    waiting.remove(look)
        for look in waiting:
            look.answer = {"why": f"its heart thread did not answer within {PROBE_S:g} s"}

    async def _signal(self, looks: list[_Look]) -> None:
        for look in looks:
            look.stack_missing = self._send(look)
        waiting = [look for look in looks if look.begin >= 0]
        deadline = time.monotonic() + STACK_S
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            now = time.monotonic()
            for look in list(waiting):
                size = _size(look.source)
                if size > look.size:
                    look.size, look.grew_at = size, now
                elif look.size > look.begin and now - look.grew_at >= QUIET_S:
                    waiting.remove(look)
        for look in looks:
            if look.begin >= 0:
                look.stack = _appended(look)
                if look.stack is None:
                    state = (look.proc or {}).get("state")
                    deep = ": it waits uninterruptibly in the kernel (state D)" if state == "D" else ""
                    look.stack_missing = f"nothing was written within {STACK_S:g} s of the signal{deep}"
            elif isinstance(look.answer.get("threads"), str):
                look.stack = _cut(look.answer["threads"])  # by the heart thread, without a signal

    def _send(self, look: _Look) -> str | None:
        source = look.source
        source.observe()
        if (look.proc or {}).get("state") in _STOPPED:
            return "the process is stopped (state T): it can tell nothing before it goes on"
        look.begin = look.size = _size(source)
        trouble = send_dump_signal(source, self._descriptor(source))
        if trouble:
            look.begin = -1
        return trouble or None


def _heart_trouble(look: _Look) -> str | None:
    """Return why a heart thread can't answer; None when it is worth to wait for it."""
    source = look.source
    if source.slot is None or source.trouble:
        return f"the slot can't be read: {source.trouble or 'it is not there yet'}"
    if source.slot.version < 2:
        return "the job uses an older stabilityclient, which answers no questions"
    if (look.proc or {}).get("state") in _STOPPED:
        return "the process is stopped (state T)"
    stands_s = time.monotonic() - source.beat_at
    if stands_s > HEART_STANDS_S:
        return f"its heart thread stands for {stands_s:.0f} s: something holds the interpreter's lock"
    return None


def _recorder_trouble(look: _Look) -> str:
    why = str(look.answer.get("why") or "")
    return why if look.source.info.world_size > 1 and "Flight Recorder" in why else ""


def _slot_facts(source: Source) -> dict[str, Any]:
    slot: SlotView | None = source.slot
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
        "pending": slot.pending,
    }


def _event(request: str, look: _Look) -> dict[str, Any]:
    info, answer = look.source.info, look.answer
    collectives = answer.get("collectives")
    return {
        "request": request,
        "rank": info.rank,
        "source": info.source,
        "pid": info.pid,
        "sampled": look.sampled,
        "proc": look.proc,
        "slot": look.slot,
        "stack": look.stack,
        "stack_missing": look.stack_missing,
        "collectives": collectives if isinstance(collectives, dict) else None,
        "collectives_missing": None if isinstance(collectives, dict) else str(answer.get("why") or "not known"),
    }


def _size(source: Source) -> int:
    try:
        return os.stat(source.folder / "stacks").st_size
    except OSError:
        return 0


def _appended(look: _Look) -> str | None:
    try:
        with open(look.source.folder / "stacks", "rb") as file:
            file.seek(look.begin)
            text = file.read(MAX_STACK_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return _cut(text) if text.strip() else None


def _cut(text: str) -> str:
    if len(text) <= MAX_STACK_CHARS:
        return text
    mark = "... the first threads are left out\n"
    kept = text[-(MAX_STACK_CHARS - len(mark)) :]
    header = _THREAD.search(kept)
    return mark + kept[header.start() + 1 :] if header else mark + kept
