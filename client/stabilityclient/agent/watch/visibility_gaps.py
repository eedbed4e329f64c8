"""Blind spots on this node, their reasons and remedies: ``agent_state.blind`` of a Health message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from stabilityclient.agent.sources import Source
from stabilityclient.rank_state.slot import STATE_RUNNING
from stabilityclient.spool import CHUNK_BYTES

__all__ = [
    "Gap",
    "SpoolDisk",
    "SpoolState",
    "duplicate_ranks",
    "grouped",
    "number_gaps",
    "rank_gaps",
    "source_gaps",
    "spool_gaps",
]

#: Ranks named in one sentence; more are counted.
MAX_NAMED = 8
#: Two processes of one rank that both live for so long are two jobs, no restart, seconds.
DUPLICATE_S = 10.0
#: For so long dropped records are called a present trouble, seconds.
DROPPED_S = 60.0


class Gap(msgspec.Struct):
    """A blind spot (docs/wire.md), with its reason and remedy as sentences."""

    what: str
    why: str
    do: str


class SpoolState(msgspec.Struct):
    """The disk of the spool; ``error`` is None when all is well."""

    free_mib: float | None
    limit_mib: float
    dropped: int
    error: str | None


def grouped(what: str, troubles: Iterable[tuple[Source, str]], do: str) -> list[Gap]:
    """Return one entry for each different reason, with the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for source, why in troubles:
        ranks.setdefault(why, []).append(source.info.rank or 0)
    return [Gap(what, f"{_named(found)}: {why}", do) for why, found in ranks.items()]


def rank_gaps(ranks: list[Source], signal_trouble: Callable[[Source], str]) -> list[Gap]:
    """Return the gaps of ranks that live: their slot, their stacks, their end.

    Args:
        signal_trouble: returns why a rank can't be made to write its stacks, empty when it can.
    """
    living = [source for source in ranks if source.alive]
    slots = [(source, source.trouble) for source in living if source.trouble]
    # An unreadable slot is enough; a process that leaves takes the signal's handler along.
    readable = [(source, source.slot) for source in living if source.slot and not source.trouble]
    running = [source for source, slot in readable if slot.state == STATE_RUNNING]
    signals = [(source, why) for source in running if (why := signal_trouble(source))]
    unseen = "runs in another container (PID namespace): how it ends, its state and its children can't be seen"
    elsewhere = [(source, unseen) for source in living if source.elsewhere]
    return [
        *grouped("slot", slots, "install one version of stabilityclient for the whole job and restart it"),
        *grouped("signals", signals, "leave STABILITY_DUMP_SIGNAL at its default, and run job and agent as one user"),
        *grouped(
            "exit_status",
            elsewhere,
            "run the ranks of a node in one container, or let the containers share their PID namespace",
        ),
    ]


def source_gaps(broken: Mapping[str, str]) -> list[Gap]:
    """Return the folders that no source can be made of: nothing of theirs is sent."""
    do = "remove the folder if nobody needs what lies there"
    more = "" if len(broken) <= MAX_NAMED else f" (and {len(broken) - MAX_NAMED} more)"
    named = sorted(broken.items())[:MAX_NAMED]
    return [Gap("source", f"sources/{name[:100]!r}: {why}{more}", do) for name, why in named]


def number_gaps(sources: Iterable[Source]) -> list[Gap]:
    """Return the processes of which nothing is sent, as the server's numbers about them can't be."""
    do = (
        "start the process again (a new start has numbers of its own); what is kept goes to a server that does not "
        "have this run: `stabilityboard import`"
    )
    troubles = [(source, source.held) for source in sources if source.held]
    return grouped("numbers", troubles, do)


def duplicate_ranks(sources: list[Source], now: float) -> list[Gap]:
    """Return ranks of which two of these living processes are one: two jobs with one run id."""
    by_rank: dict[int, list[Source]] = {}
    for source in sources:
        same = by_rank.setdefault(source.info.rank or 0, [])
        # A process may open the run twice: that is one job.
        if now - source.info.started > DUPLICATE_S and all(source.info.pid != other.info.pid for other in same):
            same.append(source)
    gaps = []
    for rank, found in by_rank.items():
        pids = ", ".join(str(source.info.pid) for source in found)
        why = f"rank {rank} has {len(found)} living processes (pids {pids}): two jobs record under one run id, and "
        if len(found) > 1:
            do = "end one of them, or give it a STABILITY_RUN_ID of its own"
            gaps.append(Gap("twins", why + "their points are mixed", do))
    return gaps


class SpoolDisk:
    """The disk on which the spool lies, of ``limit_bytes`` at most."""

    def __init__(self, folder: Path, limit_bytes: int, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._now = now
        self._dropped = 0
        self._dropped_at = float("-inf")

    def state(self, dropped: int, own_error: str) -> SpoolState:
        """Return the part of a Health message about it.

        Args:
            dropped: records of this node that found no room so far. own_error: why the agent's own find none.
        """
        if dropped > self._dropped:
            self._dropped_at = self._now()
        self._dropped = dropped
        free_mib, error = None, None
        try:
            disk = os.statvfs(self._folder)
        except OSError as failure:
            error = f"the spool's folder can't be read: {failure.strerror or failure}"
        else:
            free = disk.f_bavail * disk.f_frsize
            free_mib = round(free / 2**20, 1)
            if disk.f_flag & os.ST_RDONLY:
                error = "the spool's disk is read-only"
            elif free < CHUNK_BYTES:
                error = f"the spool's disk is full: {free_mib} MiB are free"
        if error is None and own_error:
            error = own_error
        if error is None and self._now() - self._dropped_at < DROPPED_S:
            error = "records found no room in the last minute and were dropped"
        return SpoolState(free_mib, round(self._limit_bytes / 2**20, 1), dropped, error)


def spool_gaps(spool: SpoolState) -> list[Gap]:
    """Return the gaps of the disk: new records, while there is no room for them."""
    if not spool.error:
        return []
    do = "free the disk of STABILITY_DIR or set it to another one; raise STABILITY_SPOOL_MIB where that is the limit"
    return [Gap("spool", f"{spool.error}: new points of this node are not recorded", do)]


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:MAX_NAMED]))
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
