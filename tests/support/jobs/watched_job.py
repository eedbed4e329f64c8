"""A job as the liveness monitor sees it: health messages second by second, with what tests make go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.monitor import LivenessMonitor
from stabilitybackend.judging.liveness.stacks.dumps import DumpRequest
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.gpus import CriticalFault
from stabilitybackend.schema.health import read_health
from stabilityclient.wire import Health, SourceInfo

__all__ = ["START", "Job", "event", "kinds", "source", "stack"]

START = 1_000_000.0


def source(rank: int, start: int = 1) -> str:
    return f"r{rank}-{start:x}-{100 + rank}"


@dataclass
class Job:
    """A job with one agent per node; every second `run` tells the monitor what the slots say."""

    monitor: LivenessMonitor = field(default_factory=lambda: LivenessMonitor("run"))
    nodes: dict[str, list[int]] = field(default_factory=lambda: {"a": [0, 1]})
    step_s: float = 0.5
    now: float = START
    step: int = 0
    #: Seconds in which no step was done, after which the steps go on where they were.
    lost_s: float = 0.0
    start: int = 1
    beat: int = 0
    stuck: dict[int, dict[str, Any]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    #: Seconds by which the clock of each node is ahead of the server's.
    ahead_s: dict[str, float] = field(default_factory=dict)
    agent_state: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Fields that all slots have beside those of the first version of a slot.
    more: dict[str, Any] = field(default_factory=dict)
    #: Requests that the monitor wanted carried out.
    wanted: list[DumpRequest] = field(default_factory=list)
    said: list[Finding] = field(default_factory=list)
    #: What is known of broken GPUs, as `GpuWatch.broken` tells it.
    gpu_faults: list[CriticalFault] = field(default_factory=list)

    def run(self, seconds: int, *, moving: bool = True) -> list[Finding]:
        """Let seconds pass and return what was said in them."""
        said: list[Finding] = []
        for _ in range(seconds):
            self.now += 1.0
            self.beat += 1
            if moving:
                self.step = int((self.now - START - self.lost_s) / self.step_s)
            for node, ranks in self.nodes.items():
                if node not in self.silent:
                    self.tell(node, [self.slot(rank) for rank in ranks])
            said += self.monitor.tick(self.now, self.gpu_faults)
            self.wanted += self.monitor.wants()
        self.said += said
        return said

    def tell(self, node: str, slots: list[Any], told: float | None = None) -> None:
        """Send one Health message; `told` is its own time, the node's now where it is left out."""
        told = self.now + self.ahead_s.get(node, 0.0) if told is None else told
        state = self.agent_state.get(node, {})
        health, _ = read_health(Health(f"agent-{node}", node, told, slots, state))
        self.monitor.observe(health, self.now)

    def node_of(self, rank: int) -> str:
        return next(node for node, ranks in self.nodes.items() if rank in ranks)

    def slot(self, rank: int) -> dict[str, Any]:
        began = START + self.lost_s + self.step * self.step_s + self.ahead_s.get(self.node_of(rank), 0.0)
        slot = {
            "rank": rank,
            "source": source(rank, self.start),
            "pid": 100 + rank,
            "alive": True,
            "state": "running",
            "step": self.step,
            "step_start": began,
            "phase": "backward",
            "phase_start": began + 0.1,
            "expect_s": 0.0,
            "beat": self.beat,
            "last_seq": 1,
            "dropped": 0,
            "segment_key": "",
            "time": self.now,
        }
        return slot | self.more | self.stuck.get(rank, {})

    def event(self, kind: str, rank: int, data: dict[str, Any] | None = None, start: int | None = None) -> None:
        who = source(rank, start or self.start)
        self.monitor.event(event(kind, self.now, self.step, data, source=who, rank=rank), self.now)

    def dies(
        self, rank: int, evidence: str = "exit signal 9", time: float | None = None, start: int = 1, **facts: Any
    ) -> None:
        who = source(rank, start)
        data = {"source": who, "rank": rank, "pid": 100 + rank, "last_phase": "forward", "evidence": evidence}
        time = self.now if time is None else time
        self.monitor.event(event("process_death", time, self.step, data | facts), self.now)
        self.stuck[rank] = {"alive": False}

    def answer(self, rank: int, **data: Any) -> None:
        """Send the `stacks` event of one rank for the newest request."""
        said = {"request": self.wanted[-1].request, "rank": rank, "source": source(rank, self.start), "pid": 100 + rank}
        self.monitor.event(event("stacks", self.now, self.step, said | data, node=self.node_of(rank)), self.now)


def event(
    kind: str,
    time: float,
    step: int | None = None,
    data: dict[str, Any] | None = None,
    *,
    source: str = "a1-1",
    rank: int | None = None,
    node: str = "",
) -> LineageEvent:
    """Return an event of a rank, or of an agent, as the fold hands it on."""
    return LineageEvent(SourceInfo(source, rank, node=node), 0, kind, time, step, data or {})


def kinds(said: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.state) for finding in said]


def stack(*calls: tuple[str, str], line: int = 10) -> str:
    """Return what faulthandler writes of a process: two helper threads, then the main thread in these calls.

    Args:
        calls: (file, function), innermost first.
    """
    heartbeat = """Thread 0x00007f64b7fff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap
"""
    frames = "".join(f'  File "{file}", line {line} in {function}\n' for file, function in calls)
    return f"{heartbeat}\n{heartbeat}\nCurrent thread 0x00007f64bdbbdb80 (most recent call first):\n{frames}"
