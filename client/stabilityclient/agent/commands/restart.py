"""Carries out ``restart``: the plan on this node's disk first, then the end of this node's ranks and no other process.

A restart is for the processes it was decided on. One that comes late must not end the job that has started since, so
it is refused where a rank started after the newest start that the server knew of on this node.

Where an agent was killed in the middle, its plan on the disk shows that ranks may have been ended: without it none was.
The next agent checks which of those processes still live. None: it is carried out, for any cause of their end.
Some: the rest is ended, as half a job is useless; after its expiry it only reports the survivors.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stabilityclient.agent.commands.agent_commands import CommandToRun
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.watch.exits import has_ended, open_process, send_signal, signal_name
from stabilityclient.agent.watch.probes import read_stat, wchan_of
from stabilityclient.agent.watch.visibility_gaps import duplicate_ranks
from stabilityclient.plan import PLAN_VERSION, mark_used, write_plan
from stabilityclient.rollback.decision import INFERRED
from stabilityclient.sidecar import read_json
from stabilityclient.wire import started_ns

__all__ = ["GRACE_S", "Restarter", "refusal"]

#: Seconds from SIGTERM to SIGKILL where the command names none.
GRACE_S = 10.0
#: Longest grace that is believed, seconds.
MAX_GRACE_S = 300.0
#: How long a killed process may take to be gone, seconds: its memory is freed first, and a GPU driver may hold it.
GONE_S = 10.0
_POLL_S = 0.05


def refusal(command: CommandToRun, node: str, ranks: Iterable[Source]) -> str:
    """Return why this node can't carry out the command, nothing when it can. Pure.

    Args:
        ranks: processes that live, their slots just read.
    """
    plan, fence = command.plan, command.fence
    if plan is None or fence is None or plan.get("version") != PLAN_VERSION:
        return (
            f"the command has no plan of version {PLAN_VERSION} and no fence: update server and job to the same version"
        )
    living = list(ranks)
    known = fence.starts.get(node)
    if living and known is None:
        return f"it was decided without knowing the ranks of {node}"
    newest = max(living, key=lambda source: started_ns(source.info.source), default=None)
    if newest is not None and started_ns(newest.info.source) > int(known or "0", 16):
        return f"rank {newest.info.rank} (pid {newest.info.pid}) started after it was decided"
    key = fence.segment_key
    for source in living:
        there = source.slot.segment_key if source.slot is not None else ""
        if there and there != key and not key.startswith(INFERRED):
            return f"decided on segment {key!r}, rank {source.info.rank} is in {there!r}"
    return ""


def _of_before(command: CommandToRun, node: str, living: list[Source], over: bool) -> tuple[str, str] | None:
    """Return the facts of a command whose plan an earlier agent wrote; None where the rest is to be ended now."""
    known = None if command.fence is None else command.fence.starts.get(node)
    meant = [source for source in living if known is not None and started_ns(source.info.source) <= int(known, 16)]
    if not meant:
        since = f"; {_named(living)} started since" if living else ""
        return "acted", f"the plan is written, and no rank that it was decided on is alive here{since}"
    if over:
        live = "lives" if len(meant) == 1 else "live"
        return "failed", f"the plan is written, but {_named(meant)} of those that it was decided on {live}: not ended"
    return None


def _named(ranks: list[Source]) -> str:
    return ", ".join(f"rank {source.info.rank} (pid {source.info.pid})" for source in ranks[:4]) + (
        f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    )


class Restarter:
    """Ends the ranks of this node on command.

    Args:
        folder: run folder of this node. node: its name. sources: its ranks. gone_s: see GONE_S.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        sources: Sources,
        now: Callable[[], float] = time.time,
        *,
        gone_s: float = GONE_S,
    ) -> None:
        self._folder = folder
        self._node = node
        self._sources = sources
        self._now = now
        self._gone_s = gone_s
        self._ended: dict[str, str] = {}
        self._saved: set[str] = set()

    async def carry_out(self, command: CommandToRun, over: bool = False) -> tuple[str, str]:
        """Write the plan, end the ranks, and return how that went; at most the grace and some seconds later.

        Args:
            over: it is too late to act.
        """
        self._sources.discover()
        for source in self._sources.ranks():
            source.observe()
        ranks = self._sources.living_ranks()
        # The plan goes before the first signal: where it is not this command's, no rank was ended by it.
        planned = read_json(str(self._folder / "plan.json")).get("command_id") == command.command_id
        if planned and (known := _of_before(command, self._node, ranks, over)) is not None:
            return known
        if over and not planned:
            return "failed", "its plan is not on this node, so no rank was ended here; it is not begun again"
        two = duplicate_ranks(ranks, self._now())
        why = f"{two[0].why}: which of them is meant is not known" if two else refusal(command, self._node, ranks)
        if why:
            return "failed", f"refused: {why}"
        try:
            # Not twice: a later plan would pass for news to a job that has served it.
            if not planned:
                write_plan(str(self._folder), {**(command.plan or {}), "received": self._now()})
        except OSError as error:
            # Without its plan the job would start at the newest checkpoint, which may be the one to leave.
            return "failed", f"the plan can't be written ({error.strerror or error}): no rank was ended here"
        if not ranks:
            return "acted", "no rank is alive here; the plan is written"
        grace_s = GRACE_S if command.grace_s is None else min(max(command.grace_s, 0.0), MAX_GRACE_S)
        targets = [_Target(source) for source in ranks]
        try:
            return await self._end(targets, grace_s, command.command_id)
        finally:
            for target in targets:
                target.close()

    async def _end(self, targets: list[_Target], grace_s: float, command_id: str) -> tuple[str, str]:
        begun = time.monotonic()
        for target in targets:
            # Before the signal: the report of the death has to name the command.
            self._ended[target.source.info.source] = command_id
            target.send(signal.SIGTERM)
        await _gone(targets, grace_s)
        for target in targets:
            if not target.gone:
                target.send(signal.SIGKILL)
        await _gone(targets, self._gone_s)
        took = f"{time.monotonic() - begun:.1f} s"
        left = [target for target in targets if not target.gone]
        if left:
            return "failed", f"{'; '.join(target.why_alive() for target in left)[:400]} ({took})"
        killed = [str(target.source.info.rank) for target in targets if target.sent == signal.SIGKILL]
        which = "rank" if len(killed) == 1 else "ranks"
        how = f"; {which} {', '.join(killed)} only by SIGKILL after {grace_s:g} s" if killed else ""
        ended = "1 rank is" if len(targets) == 1 else f"{len(targets)} ranks are"
        return "acted", f"the plan is written, {ended} ended in {took}{how}"

    def ordered_end(self, source: Source) -> str | None:
        """Return the id of the command that ended a process, None where it ended otherwise."""
        return self._ended.get(source.info.source)

    def saved(self, source: Source) -> None:
        """Take note that a rank has saved a checkpoint: the plan from before its start has served."""
        if source.info.source in self._saved:
            return
        try:
            mark_used(str(self._folder), source.info.started)
        except (OSError, ValueError):
            return  # the next checkpoint tries again
        self._saved.add(source.info.source)


class _Target:
    """One process that shall end, by its handle: never another one that got its pid."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sent: int | None = None
        self.gone = False
        self._trouble = ""
        self._fd: int | None = None
        try:
            if source.elsewhere:
                raise OSError("it runs in another container (PID namespace)")
            if not source.ticks:
                raise OSError("its start is not known, so it may be another process by now")
            self._fd = open_process(source.info.pid, source.ticks)
            self.gone = self._fd is None
        except OSError as error:
            self._trouble = f"the kernel gives no handle of it ({error.strerror or error})"

    def send(self, number: int) -> None:
        """Signal the process; one that is stopped is continued, or it would never see it."""
        if self._fd is None or self.gone:
            return
        try:
            send_signal(self._fd, number)
            stat = read_stat(self.source.info.pid)
            if stat is not None and stat.state in "Tt":
                send_signal(self._fd, signal.SIGCONT)
            self.sent = number
        except ProcessLookupError:
            self.gone = True
        except OSError as error:
            self._trouble = f"it can't be signalled ({error.strerror or error})"

    def poll(self) -> None:
        """Note whether the process is dead."""
        self.gone = self.gone or (self._fd is not None and has_ended(self._fd))

    def why_alive(self) -> str:
        """Return the obstacle, one sentence."""
        pid = self.source.info.pid
        who = f"rank {self.source.info.rank} (pid {pid}) is still alive"
        if self._trouble:
            return f"{who}: {self._trouble}"
        stat = read_stat(pid)
        state = "unknown" if stat is None else stat.state
        kernel = wchan_of(pid) if state == "D" else ""
        sent = signal_name(self.sent) if self.sent is not None else "no signal"
        return f"{who} after {sent}: state {state}" + (f", it waits in the kernel ({kernel})" if kernel else "")

    def close(self) -> None:
        """Give the handle back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


async def _gone(targets: list[_Target], wait_s: float) -> None:
    """Return when all are dead, or after ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while True:
        for target in targets:
            target.poll()
        if all(target.gone for target in targets) or time.monotonic() >= deadline:
            return
        await asyncio.sleep(_POLL_S)
