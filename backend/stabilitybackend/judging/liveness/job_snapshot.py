"""What is known of a job at the moment when it hangs: the ranks that are seen, those that are not, and the dump."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import to_builtins

from stabilitybackend.judging.liveness.gpu_facts import BrokenGpu
from stabilitybackend.judging.liveness.rank_watch import RankWatch, number
from stabilitybackend.judging.liveness.stacks.collectives import Wavefront
from stabilitybackend.judging.liveness.stacks.dumps import Dump
from stabilitybackend.schema.ranks import Where
from stabilityclient.wire import started_ns

#: The pending calls are asked for once a beat; a main thread that ran one so lately runs Python, seconds. A busy
#: machine makes beats late.
RUNS_PYTHON_S = 6.0
#: Samples of ranks that are read in one go.
SAMPLES_AT_ONCE = 512
#: Share of a core from which a main thread counts as busy, and from which it does something.
BUSY_CPU = 0.5
USES_CPU = 0.1
#: Phases in which a rank gets its data.
_DATA_PHASES = frozenset(
    {"batch", "data", "data_loader", "data_loading", "dataload", "dataloader", "fetch", "input", "loader"}
)

#: Processes whose starts lie further apart belong to different starts of the job, nanoseconds.
STARTS_APART_NS = 30_000_000_000

#: Files of debuggers in which a main thread waits for its user.
_DEBUGGER = re.compile(r"(?:^|/)(?:bdb|pdb)\.py$|/(?:debugpy|ipdb|pudb|pydevd[^/]*)/")

__all__ = ["STARTS_APART_NS", "USES_CPU", "JobSnapshot", "is_data", "of_earlier_start", "of_larger_start", "tree_cpu_s"]


class JobStart(NamedTuple):
    """A start of the job: when, unix seconds by its node's clock, and on how many ranks; 0, 0 where none is known."""

    started: float
    ranks: int

    def left_out(self, rank: int, source: str) -> bool:
        """Say whether a process is of an earlier start, and of a rank that this one does not have."""
        return rank >= self.ranks and started_ns(source) / 1e9 < self.started


def is_data(phase: str) -> bool:
    """Say whether a phase is one of getting data."""
    return phase.lower() in _DATA_PHASES


def of_earlier_start(ranks: Iterable[RankWatch], visible: Sequence[RankWatch]) -> set[int]:
    """Return the ranks whose newest process is over, and of an earlier start of the job than those that are seen.

    While ranks have not begun their first step no other rank of their start is past its own. A process that made no
    step either is judged by its age. ``visible``: those of the ranks that run and are seen.
    """
    if not visible or any(watch.step >= 0 for watch in visible):
        return set()
    oldest = min(started_ns(watch.source) for watch in visible) - STARTS_APART_NS
    over = [watch for watch in ranks if not watch.running]
    return {watch.rank for watch in over if watch.first_step_done or started_ns(watch.source) < oldest}


def of_larger_start(ranks: Iterable[RankWatch], visible: Iterable[RankWatch], newest: JobStart) -> list[int]:
    """Return the ranks of an earlier start of the job which the newest one does not have: they do not come back.

    While any rank is seen that the newest start does not have, two starts run at once and nothing is known.
    """
    beyond = [watch for watch in ranks if watch.rank >= newest.ranks]
    if not beyond or any(watch.rank >= newest.ranks for watch in visible):
        return []
    return [watch.rank for watch in beyond if newest.left_out(watch.rank, watch.source)]


def tree_cpu_s(dump: Dump, rank: int) -> float | None:
    """Return the CPU seconds of a rank's process with its threads and children, None where its agent can't tell."""
    seconds = dump.proc_of(rank).get("tree_cpu_s")
    return None if type(seconds) not in (int, float) else number(seconds)


@dataclass
class JobSnapshot:
    """One hang.

    Args:
        visible: running ranks whose slots arrive, by rank, at least one.
        unseen: running ranks whose slots do not arrive or can't be read.
        over: ranks that have finished or left.
        never: ranks of the world size that were never connected: not started yet, or of a script that calls ``init()``
            on some ranks only.
        not_back: ranks that were there before the job was started again, and have not come since.
        silent_s: for how long each unseen rank has been silent, seconds.
        dump: what the agents collected, None while nothing has come.
        now: unix seconds.
    """

    visible: list[RankWatch]
    unseen: list[RankWatch] = field(default_factory=list)
    over: list[RankWatch] = field(default_factory=list)
    never: list[int] = field(default_factory=list)
    not_back: list[int] = field(default_factory=list)
    silent_s: dict[int, float] = field(default_factory=dict)
    dump: Dump | None = None
    #: Ranks that ran Python when nobody had sent them a signal yet, None while that is now: a signal lets pending calls
    #: run in a main thread that only waits.
    busy: frozenset[int] | None = None
    #: What agents say that they can't see, and that a hang can't be judged without: "node a: signals: ...".
    blind: list[str] = field(default_factory=list)
    #: Ranks whose GPU is known to be broken.
    broken_gpus: Mapping[int, BrokenGpu] = field(default_factory=dict)
    now: float = 0.0
    #: Seconds that the hang had lasted before it was looked at again: the server was away meanwhile.
    before_s: float = 0.0
    _sampled: dict[int, dict[str, Any]] = field(default_factory=dict)
    _front: Wavefront | None = None

    @property
    def running(self) -> list[int]:
        """Return the ranks whose processes run, seen or not: those that a stack sample is expected of."""
        return [watch.rank for watch in (*self.visible, *self.unseen) if watch.running]

    @property
    def absent(self) -> list[int]:
        """Return the ranks that have not come, in this start of the job or ever."""
        return [*self.never, *self.not_back]

    @property
    def front(self) -> Wavefront:
        """Where the collectives are stuck; empty without a Flight Recorder."""
        if self._front is None:
            self._front = self.dump.wavefront() if self.dump is not None else Wavefront()
        return self._front

    def reading(self) -> Generator[None, None, None]:
        """Read all that the agents collected; yield where others may be served. Who asks then has it at once."""
        if self.dump is None:
            return
        self._front = yield from self.dump.finding_wavefront()
        for count, rank in enumerate(self.dump.samples):
            self._sampled_of(rank)
            if count % SAMPLES_AT_ONCE == 0:
                yield

    @cached_property
    def stalled_s(self) -> float:
        """Seconds since the last progress of the rank that has been stalled longest."""
        return self.before_s + self.seen_to_stand_s

    @cached_property
    def seen_to_stand_s(self) -> float:
        """Of these, the seconds in which somebody looked."""
        return max(watch.stalled_s for watch in self.reporting_ranks)

    @cached_property
    def reporting_ranks(self) -> list[RankWatch]:
        """Return the visible ranks that report each step; all where none does."""
        return [watch for watch in self.visible if not watch.sparse] or self.visible

    @property
    def step(self) -> int:
        """Return the step at which the job hangs, -1 before its first one; some ranks never report theirs."""
        steps = [watch.step for watch in self.reporting_ranks if not watch.stepless]
        later = [watch.step for watch in self.reporting_ranks if watch.step >= 0 and watch.first_step_done]
        return min([step for step in steps if step >= 0] if later else steps, default=-1)

    def stalled_s_of(self, watch: RankWatch) -> float:
        """Return for how long a rank has been stalled, seconds; without reported steps at most as the others."""
        return self.before_s + (min(watch.stalled_s, self.seen_to_stand_s) if watch.sparse else watch.stalled_s)

    def proc(self, watch: RankWatch) -> dict[str, Any]:
        """Return what the kernel says of a rank: as sampled for the dump, undisturbed, else the newest."""
        return {**to_builtins(watch.proc), **self._sampled_of(watch.rank)}

    def where(self, watch: RankWatch) -> Where:
        """Return what a rank's stack says, ``unknown`` without one."""
        stack = self.dump.stack_of(watch.rank) if self.dump is not None else None
        return "unknown" if stack is None else stack.where

    def is_stopped(self, watch: RankWatch) -> bool:
        """Say whether the process is stopped: SIGSTOP, a debugger, a frozen control group."""
        return str(self.proc(watch).get("state", ""))[:1] in ("T", "t")

    def in_debugger(self, watch: RankWatch) -> bool:
        """Say whether a debugger holds the main thread: ``breakpoint()``, an editor."""
        stack = self.dump.stack_of(watch.rank) if self.dump is not None else None
        return stack is not None and any(_DEBUGGER.search(frame.file) for frame in stack.frames[:4])

    def waits_for_disk(self, watch: RankWatch) -> bool:
        """Say whether the main thread was in the kernel's uninterruptible sleep, in each sample that we have."""
        samples = self._samples(watch)
        return bool(samples) and all(sample["state"] == "D" for sample in samples)

    def _samples(self, watch: RankWatch) -> list[Mapping[str, Any]]:
        return [sample for sample in (to_builtins(watch.proc), self._sampled_of(watch.rank)) if sample.get("state")]

    def _sampled_of(self, rank: int) -> dict[str, Any]:
        """Return what the kernel says of a rank as it was sampled for the dump; read once."""
        if self.dump is None:
            return {}
        if rank not in self._sampled:
            self._sampled[rank] = self.dump.proc_of(rank)
        return self._sampled[rank]

    def all_busy(self) -> frozenset[int]:
        """Return the ranks that run Python now."""
        return frozenset(watch.rank for watch in self.visible if self.runs_python(watch))

    def runs_python(self, watch: RankWatch) -> bool:
        """Say whether the main thread runs Python and uses the processor while no step is made."""
        if self.busy is not None:
            return watch.rank in self.busy
        silent = watch.main_silent_s
        if silent is None or silent > RUNS_PYTHON_S or watch.python_silent_s:
            return False
        # On a machine with more work than cores a busy thread gets little, but it is always found waiting for a core.
        samples = self._samples(watch)
        return any(number(sample.get("cpu")) >= BUSY_CPU for sample in samples) or (
            bool(samples) and all(sample.get("state") == "R" for sample in samples)
        )
