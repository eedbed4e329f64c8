"""State of a hanging job: visible ranks, invisible ones, and the dump."""

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

#: Longest time since a pending call of a main thread that runs Python, seconds: one a beat, and a busy machine makes
#: beats late.
RUNS_PYTHON_S = 6.0
#: Samples of ranks that are read in one slice.
SAMPLES_AT_ONCE = 512
#: Share of a core of a busy main thread, and of an active one.
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
    """A start of the job: time, unix seconds by its node's clock, and ranks; 0, 0 for unknown."""

    started: float
    ranks: int

    def left_out(self, rank: int, source: str) -> bool:
        """Return whether a process is of an earlier start, and of a rank that this one lacks."""
        return rank >= self.ranks and started_ns(source) / 1e9 < self.started


def is_data(phase: str) -> bool:
    return phase.lower() in _DATA_PHASES


def of_earlier_start(ranks: Iterable[RankWatch], visible: Sequence[RankWatch]) -> set[int]:
    """Return the ranks whose newest process ended in an earlier start of the job than the visible ones.

    Before the end of the first step no other rank of the start is past its own. A process without a step is judged by
    its age. ``visible``: those of the ranks that run and report.
    """
    if not visible or any(watch.step >= 0 for watch in visible):
        return set()
    oldest = min(started_ns(watch.source) for watch in visible) - STARTS_APART_NS
    over = [watch for watch in ranks if not watch.running]
    return {watch.rank for watch in over if watch.first_step_done or started_ns(watch.source) < oldest}


def of_larger_start(ranks: Iterable[RankWatch], visible: Iterable[RankWatch], newest: JobStart) -> list[int]:
    """Return the ranks of an earlier start of the job which the newest one lacks.

    While any such rank is visible, two starts run at the same time and the answer is empty.
    """
    beyond = [watch for watch in ranks if watch.rank >= newest.ranks]
    if not beyond or any(watch.rank >= newest.ranks for watch in visible):
        return []
    return [watch.rank for watch in beyond if newest.left_out(watch.rank, watch.source)]


def tree_cpu_s(dump: Dump, rank: int) -> float | None:
    """Return the CPU seconds of a rank's process with its threads and children, None for unknown."""
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
        not_back: ranks from before the job's restart that have not returned.
        silent_s: silence of each unseen rank, seconds.
        dump: answers of the agents, None for none.
        now: unix seconds.
    """

    visible: list[RankWatch]
    unseen: list[RankWatch] = field(default_factory=list)
    over: list[RankWatch] = field(default_factory=list)
    never: list[int] = field(default_factory=list)
    not_back: list[int] = field(default_factory=list)
    silent_s: dict[int, float] = field(default_factory=dict)
    dump: Dump | None = None
    #: Ranks that ran Python before the first signal, None while there was none: a signal lets pending calls run in a
    #: waiting main thread.
    busy: frozenset[int] | None = None
    #: Agents' blind spots that a verdict needs: "node a: signals: ...".
    blind: list[str] = field(default_factory=list)
    #: Ranks with a broken GPU.
    broken_gpus: Mapping[int, BrokenGpu] = field(default_factory=dict)
    now: float = 0.0
    #: Duration of the hang before it was observed again, seconds: the server was away meanwhile.
    before_s: float = 0.0
    _sampled: dict[int, dict[str, Any]] = field(default_factory=dict)
    _front: Wavefront | None = None

    @property
    def running(self) -> list[int]:
        """Return the ranks with running processes, visible or not: those of a stack sample."""
        return [watch.rank for watch in (*self.visible, *self.unseen) if watch.running]

    @property
    def absent(self) -> list[int]:
        """Return the ranks that are missing, in this start of the job or ever."""
        return [*self.never, *self.not_back]

    @property
    def front(self) -> Wavefront:
        """The stuck collectives; empty without a Flight Recorder."""
        if self._front is None:
            self._front = self.dump.wavefront() if self.dump is not None else Wavefront()
        return self._front

    def reading(self) -> Generator[None, None, None]:
        """Read all answers of the agents; yield where others may be served. Later access is immediate."""
        if self.dump is None:
            return
        self._front = yield from self.dump.finding_wavefront()
        for count, rank in enumerate(self.dump.samples):
            self._sampled_of(rank)
            if count % SAMPLES_AT_ONCE == 0:
                yield

    @cached_property
    def stalled_s(self) -> float:
        """Seconds since the last progress of the longest stalled rank."""
        return self.before_s + self.seen_to_stand_s

    @cached_property
    def seen_to_stand_s(self) -> float:
        """Of these, the observed seconds."""
        return max(watch.stalled_s for watch in self.reporting_ranks)

    @cached_property
    def reporting_ranks(self) -> list[RankWatch]:
        """Return the visible ranks that report each step; all for none."""
        return [watch for watch in self.visible if not watch.sparse] or self.visible

    @property
    def step(self) -> int:
        """Return the step of the hang, -1 before the first one; some ranks never report theirs."""
        steps = [watch.step for watch in self.reporting_ranks if not watch.stepless]
        later = [watch.step for watch in self.reporting_ranks if watch.step >= 0 and watch.first_step_done]
        return min([step for step in steps if step >= 0] if later else steps, default=-1)

    def stalled_s_of(self, watch: RankWatch) -> float:
        """Return the stall of a rank, seconds; without reported steps at most that of the others."""
        return self.before_s + (min(watch.stalled_s, self.seen_to_stand_s) if watch.sparse else watch.stalled_s)

    def proc(self, watch: RankWatch) -> dict[str, Any]:
        """Return the kernel's facts of a rank: as sampled for the dump, undisturbed, else the newest."""
        return {**to_builtins(watch.proc), **self._sampled_of(watch.rank)}

    def where(self, watch: RankWatch) -> Where:
        """Return the location by a rank's stack, ``unknown`` without one."""
        stack = self.dump.stack_of(watch.rank) if self.dump is not None else None
        return "unknown" if stack is None else stack.where

    def is_stopped(self, watch: RankWatch) -> bool:
        """Return whether the process is stopped: SIGSTOP, a debugger, a frozen control group."""
        return str(self.proc(watch).get("state", ""))[:1] in ("T", "t")

    def in_debugger(self, watch: RankWatch) -> bool:
        """Return whether a debugger holds the main thread: ``breakpoint()``, an editor."""
        stack = self.dump.stack_of(watch.rank) if self.dump is not None else None
        return stack is not None and any(_DEBUGGER.search(frame.file) for frame in stack.frames[:4])

    def waits_for_disk(self, watch: RankWatch) -> bool:
        """Return whether the main thread was in the kernel's uninterruptible sleep in each sample."""
        samples = self._samples(watch)
        return bool(samples) and all(sample["state"] == "D" for sample in samples)

    def _samples(self, watch: RankWatch) -> list[Mapping[str, Any]]:
        return [sample for sample in (to_builtins(watch.proc), self._sampled_of(watch.rank)) if sample.get("state")]

    def _sampled_of(self, rank: int) -> dict[str, Any]:
        """Return the kernel's facts of a rank as sampled for the dump; read once."""
        if self.dump is None:
            return {}
        if rank not in self._sampled:
            self._sampled[rank] = self.dump.proc_of(rank)
        return self._sampled[rank]

    def all_busy(self) -> frozenset[int]:
        return frozenset(watch.rank for watch in self.visible if self.runs_python(watch))

    def runs_python(self, watch: RankWatch) -> bool:
        """Return whether the main thread runs Python and uses the processor without a step."""
        if self.busy is not None:
            return watch.rank in self.busy
        silent = watch.main_silent_s
        if silent is None or silent > RUNS_PYTHON_S or watch.python_silent_s:
            return False
        # On a machine with more work than cores a busy thread gets little, but always waits for a core.
        samples = self._samples(watch)
        return any(number(sample.get("cpu")) >= BUSY_CPU for sample in samples) or (
            bool(samples) and all(sample.get("state") == "R" for sample in samples)
        )
