"""The sources in a run folder: their identity, how far they are read, sent and confirmed, and whether they live."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Container, Iterator
from pathlib import Path

import msgspec

from stabilityclient.agent.upload.reader import SpoolReader
from stabilityclient.agent.watch.exits import ExitStatus
from stabilityclient.agent.watch.probes import read_stat
from stabilityclient.agent.watch.safe_files import read_object
from stabilityclient.rank_state.slot import MAX_TIME_S, STATE_FINISHED, STATE_RUNNING, SlotView, read_slot
from stabilityclient.start import pid_namespace
from stabilityclient.wire import SourceInfo

__all__ = ["Source", "Sources", "is_alive", "read_source"]

#: Process states in /proc that mean: dead already, only its parent has not asked yet.
_DEAD_STATES = ("Z", "X")
#: Source ids that the server takes: one that it refuses would keep the whole node out.
_SOURCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: A process in another container whose heartbeat thread does not beat for so long is taken as gone, seconds.
ELSEWHERE_S = 600.0
#: Ranks of one node, at most: it has 8 to 16 GPUs.
MAX_HEALTH_RANKS = 256


class Source:
    """One source on this node.

    Args:
        folder: its folder. info: its SourceInfo. ticks: start of its process (0: unknown).

    Attributes:
        acked: last number that the server confirmed. sent: last number sent since the last rewind.
        durable: last number that the server can't lose any more; the spool up to it may go.
        high: highest number sent by this agent, or believed at the start of a connection.
        served_before: another agent may have sent records, so the server may have more than ``high``.
        claimed: the server's number beyond ``high``, where it is plausible; 0 where that can't be.
        doubted: the server's number was never written. held: why nothing is sent, empty while it is.
        in_flight: (first, last, monotonic seconds, number of their message) of frames without an answer, oldest first.
        final: no record will be added any more. drained: all records were read on this connection.
        slot: its newest reading that made sense, None before the first. trouble: why the slot can't be read now.
        beat_at: monotonic seconds when the beat was last seen to move. ended: end of its process, None before.
        pidfd: the kernel's handle of its process while that is watched, None else; it never means another process.
        followed: whether that handle was asked for. gone_at: monotonic seconds when the process was found dead.
    """

    def __init__(self, folder: Path, info: SourceInfo, ticks: int) -> None:
        self.folder = folder
        self.info = info
        self.ticks = ticks
        self.reader = SpoolReader(str(folder))
        self.acked = self.durable = 0
        self.sent = 0
        self.high = 0
        self.served_before = True
        self.claimed = 0
        self.doubted = False
        self.held = ""
        self.in_flight: deque[tuple[int, int, float, int]] = deque()
        self.final = False
        self.drained = False
        self.alive = True
        self.slot: SlotView | None = None
        self.trouble: str | None = None
        #: Why no signal brings this process's stacks, as it reported at its start.
        self.no_dumps: str | None = None
        #: Whether facts of its launch may be collected.
        self.facts = True
        #: It runs in another container, with process ids of its own: its slot alone shows whether it lives.
        self.elsewhere = False
        self.beat_at = time.monotonic()
        self.ended: ExitStatus | None = None
        self.pidfd: int | None = None
        self.followed = False
        self.gone_at: float | None = None

    @property
    def is_rank(self) -> bool:
        """Whether this is a training process (else: an agent)."""
        return self.info.rank is not None

    @property
    def own_pid(self) -> int:
        """The pid, 0 where it means another process here."""
        return 0 if self.elsewhere else self.info.pid

    @property
    def delivered(self) -> bool:
        """Whether everything that was written is confirmed."""
        return self.drained and not self.in_flight and self.acked >= self.reader.next_seq - 1

    @property
    def safe(self) -> bool:
        """Whether everything that was written is confirmed, and the server can't lose it."""
        return self.delivered and self.durable >= self.acked

    @property
    def over(self) -> bool:
        """Whether nothing is to come of a rank: no record, and when its process is dead no report of how it ended.

        One whose files make trouble is not waited for, but for one that died in the middle of a write: its end is
        clear nevertheless.
        """
        unreadable = self.trouble is not None and not (self.slot is not None and self.slot.torn)
        return self.final and (self.alive or self.ended is not None or unreadable)

    @property
    def unreadable(self) -> str:
        """Why nothing can be read of its process now, empty when it can."""
        if not self.alive:
            return "the process has ended"
        if self.slot is None or self.trouble:
            return f"the slot can't be read: {self.trouble or 'it is not there yet'}"
        return ""

    @property
    def main_thread_pending(self) -> int | None:
        """How many pending calls the loop's thread has run, None if unknown.

        The interpreter runs them in the main thread only: where a framework trains in another one (Ray), they say
        nothing.
        """
        slot = self.slot
        return None if slot is None or slot.thread not in (0, slot.pid) else slot.pending

    def rewind(self, expected_seq: int) -> None:
        """Send again from ``expected_seq``: forget the frames in flight."""
        self.in_flight.clear()
        self.acked = expected_seq - 1
        self.durable = min(self.durable, self.acked)
        self.sent = self.acked
        self.drained = False
        self.reader.seek(expected_seq)

    def observe(self) -> None:
        """Read the slot and check whether the process lives."""
        if not self.is_rank or self.ended is not None:
            return  # nothing moves any more: a job that was restarted often leaves many
        # In this order: a process that ended between the two polls is noticed with its last message.
        self.alive = self.elsewhere or is_alive(self.info.pid, self.ticks)
        found = read_slot(str(self.folder / "slot"))
        if isinstance(found, SlotView):
            before, self.slot = self.slot, found
            if before is None or found.beat != before.beat:
                self.beat_at = time.monotonic()
            # One that lives may have lost its core in the middle of a write, and ends it when it has one again.
            stopped = not self.alive or (before is not None and before.torn and found.step == before.step)
            torn = found.torn and stopped
            self.trouble = "the slot's fields are mixed: the process was stopped in a write" if torn else None
        else:
            self.trouble = found
        if self.elsewhere:
            running = self.slot is None or self.slot.state == STATE_RUNNING
            self.alive = running and time.monotonic() - self.beat_at < ELSEWHERE_S
        if not self.alive or (self.slot is not None and self.slot.state == STATE_FINISHED):
            self.final = True


class Sources:
    """All sources of a run folder that belong to this node.

    Args:
        run_folder: of the run on this node.
        served: those of which another agent may have sent; None without such a list.
    """

    def __init__(self, run_folder: Path, served: Container[str] | None = None) -> None:
        self._folder = run_folder / "sources"
        self._served = served
        self._known: dict[str, Source] = {}
        #: Folders that no source can be made of, and why.
        self.broken: dict[str, str] = {}

    def __iter__(self) -> Iterator[Source]:
        return iter(list(self._known.values()))

    def get(self, source: str) -> Source | None:
        """Return one source, None where there is none of that name."""
        return self._known.get(source)

    def discover(self) -> list[Source]:
        """Return the sources that are new since the last call, oldest first."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        fresh = []
        for name in names:
            if name in self._known:
                continue
            try:
                source = read_source(self._folder / name)
            except FileNotFoundError:
                continue  # not whole yet, or a file that lies there
            except (OSError, ValueError) as error:
                self.broken[name] = f"{error}"[:200]
                continue
            self.broken.pop(name, None)
            source.served_before = self._served is None or name in self._served
            fresh.append(source)
        for name in [name for name in self.broken if name not in names]:
            del self.broken[name]
        fresh.sort(key=lambda source: source.info.started)
        for source in fresh:
            self._known[source.info.source] = source
        return fresh

    def ranks(self) -> list[Source]:
        """Return the training processes."""
        return [source for source in self._known.values() if source.is_rank]

    def newest_ranks(self) -> list[Source]:
        """Return the newest start of each rank, by rank."""
        newest: dict[int, Source] = {}
        for source in sorted(self.ranks(), key=lambda source: source.info.started):
            newest[source.info.rank or 0] = source
        return [newest[rank] for rank in sorted(newest)][:MAX_HEALTH_RANKS]

    def living_ranks(self) -> list[Source]:
        """Return every rank's processes that live, by rank: more than one where two jobs share a run id."""
        living = [source for source in self.ranks() if source.alive]
        return sorted(living, key=lambda source: (source.info.rank or 0, source.info.started))[:MAX_HEALTH_RANKS]

    def newest_step(self) -> int:
        """Return the highest step of the ranks that live, of all when none does; -1 before the first."""
        slots = [(source.alive, source.slot.step) for source in self.ranks() if source.slot is not None]
        living = [step for alive, step in slots if alive] or [step for _, step in slots]
        return max(living, default=-1)


def read_source(folder: Path) -> Source:
    """Return the source in a folder.

    Raises:
        OSError: it has no ``source.json`` (yet), or one that can't be read. ValueError: with an impossible value.
    """
    facts = read_object(folder / "source.json")
    info = msgspec.convert(facts, SourceInfo)  # its errors are ValueErrors
    if info.source != folder.name or not _SOURCE_ID.fullmatch(info.source):
        raise ValueError(
            f"source.json names the source {info.source!r:.60}, expected the folder's name, of A-Z a-z 0-9 . _ -"
        )
    if not (0 < info.pid < 2**31 and 0 <= (info.rank or 0) < 2**31 and abs(info.started) < MAX_TIME_S):
        raise ValueError(f"source.json says rank {info.rank}, pid {info.pid}, started {info.started}")
    ticks = facts.get("start_ticks")
    source = Source(folder, info, ticks if type(ticks) is int and ticks > 0 else 0)
    namespace = facts.get("pid_ns")
    source.elsewhere = bool(namespace) and namespace != pid_namespace()
    source.no_dumps = str(facts["no_dumps"])[:300] if facts.get("no_dumps") else None
    source.facts = facts.get("facts") is not False
    return source


def is_alive(pid: int, ticks: int) -> bool:
    """Whether process ``pid`` lives and is the one that started at ``ticks`` (0: do not compare)."""
    stat = read_stat(pid)
    return stat is not None and stat.state not in _DEAD_STATES and ticks in (0, stat.start_ticks)
