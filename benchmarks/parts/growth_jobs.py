"""Jobs that grow in one direction each, driven through a run's state as a worker drives it, every step timed.

A step is what the event loop does in one go: one message folded, one tick, one list of changes told to browsers. CPU
seconds of this thread are counted, so that a busy machine changes little, and a pause of Python's collector of cycles
is part of the step that it falls into.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import numpy as np

from stabilitybackend.base.collector import COLLECT_EVERY_S, CycleCollector
from stabilitybackend.base.slices import SLICE_S
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.feed.health import HealthFeed
from stabilitybackend.runs.feed.messages import publish
from stabilitybackend.runs.feed.pubsub import Channel, Subscriber
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import encoded
from stabilityclient.wire import EventBlock, Frame, Health, PointsBlock, SourceInfo, decode_message, encode_message

__all__ = ["COLLECTOR", "JOBS", "RANKS_PER_NODE", "START", "Rank", "Run", "Steps", "running", "words"]

START = 1_000_000.0
RANKS_PER_NODE = 8
#: Frames and words between two ticks: what a second brings.
PER_TICK = 1_000
T = TypeVar("T")
#: Of this process, as the server has it.
COLLECTOR = CycleCollector()


class Steps:
    """The CPU seconds of each step that was measured, with the pauses of Python's collector of cycles in it."""

    def __init__(self) -> None:
        self.total_s = self.longest_s = 0.0
        self._looked_at = time.monotonic()

    def take(self, work: Callable[[], Any]) -> Any:
        """Return what ``work`` returns, its time counted as one step; the collector looks at what is new in another."""
        if time.monotonic() - self._looked_at > COLLECT_EVERY_S:
            self._count(COLLECTOR.collect_new)
            self._looked_at = time.monotonic()
        return self._count(work)

    def _count(self, work: Callable[[], Any]) -> Any:
        begin = time.thread_time()
        answer = work()
        took = time.thread_time() - begin
        self.total_s += took
        self.longest_s = max(self.longest_s, took)
        return answer


class Run:
    """One run as its worker has it, with a browser that looks on."""

    def __init__(self) -> None:
        self.now = START
        self.steps = Steps()
        self.state = RunState("grown", lambda: self.now)
        self.channel = Channel()
        self.channel.join(Subscriber())
        self._feed = HealthFeed(self.channel)
        self._read = 0

    def frames(self, frames: Iterable[Frame], ticks: int = PER_TICK) -> None:
        """Fold frames, with a tick after each ``ticks``."""
        for count, frame in enumerate(frames, 1):
            raw = encode_message(frame)
            self._conclude(self.steps.take(lambda raw=raw: self._fold(raw)))
            if count % ticks == 0:
                self.tick()

    def _fold(self, raw: bytes) -> Effects:
        frame = decode_message(raw)
        assert isinstance(frame, Frame)
        return self.state.apply(frame, replayed=False)

    def health(self, words: Iterable[Health]) -> None:
        """Take what agents say."""
        for word in words:
            self.state.liveness.agent_connected(word.agent, self.now)
            self.steps.take(lambda word=word: self._feed.put(self.state.agents.health(word)))

    def tick(self) -> None:
        """Let a second pass."""
        self.now += 1.0
        self._tick()
        self._sliced(self._feed.flushing(self.state.statuses))
        self.steps.take(self.state.view)

    def _tick(self) -> None:
        self._conclude(self._sliced(self.state.ticking()))

    def _sliced(self, work: Generator[None, None, T]) -> T:
        """Work in slices, as a worker does."""
        found: list[T] = []

        def slice_of_it() -> None:
            begin = time.thread_time()
            while not found and time.thread_time() - begin < SLICE_S:
                try:
                    next(work)
                except StopIteration as end:
                    found.append(end.value)

        while not found:
            self.steps.take(slice_of_it)
        return found[0]

    def _conclude(self, changes: Effects) -> None:
        self._read += 1
        cursor = f"{self._read}-0"

        def tell() -> None:
            for incident in changes.incidents.values():
                encoded(incident)
            publish(self.channel, self.state, changes, cursor)

        if changes:
            self.steps.take(tell)


class Rank:
    """One process of one rank; each call makes the frame that its agent would send."""

    def __init__(self, rank: int, ranks: int, start: int = 1) -> None:
        node = f"n{rank // RANKS_PER_NODE}"
        began = START - 2_000.0 + 1_000.0 * start
        source = f"r{rank}-{int(began * 1e9):x}-{100 + rank}"
        self.info = SourceInfo(source, rank, ranks, rank % RANKS_PER_NODE, node, 100 + rank, began)
        self._seq, self._time = 0, began

    def frame(self, block: PointsBlock | EventBlock, records: int = 1) -> Frame:
        first, self._seq = self._seq + 1, self._seq + records
        return Frame(self.info, first, self._seq, [block])

    def event(self, kind: str, step: int | None = None, **data: Any) -> Frame:
        self._time += 0.01
        return self.frame(EventBlock(kind, self._time, step, data))

    def rows(self, first: int, count: int, names: tuple[str, ...] = ("loss",), scale: float = 1.0) -> Frame:
        times = self._time + 0.1 * np.arange(1, count + 1)
        self._time = float(times[-1])
        values = scale * (2.0 + 0.01 * np.sin(np.arange(first, first + count) * np.arange(1, len(names) + 1)[:, None]))
        steps = np.arange(first, first + count, dtype="<i8")
        return self.frame(PointsBlock(list(names), steps.tobytes(), times.tobytes(), values.tobytes()), count)

    def slot(self, step: int, now: float, **more: Any) -> dict[str, Any]:
        return {
            "rank": self.info.rank, "source": self.info.source, "pid": self.info.pid, "alive": True, "state": "running",
            "step": step, "step_start": now, "phase": "forward", "phase_start": now, "expect_s": 0.0, "beat": step,
            "world_size": self.info.world_size, "pending": step, "proc": {"state": "R", "cpu": 0.9}, "gpu": None,
        } | more  # fmt: skip


def words(ranks: list[Rank], step: int, now: float, per_node: int = RANKS_PER_NODE, **more: Any) -> list[Health]:
    """Return what the agents of all nodes say of their ranks."""
    found = []
    for at in range(0, len(ranks), per_node):
        node = f"n{at // per_node}"
        slots = [rank.slot(step, now, **more) for rank in ranks[at : at + per_node]]
        found.append(Health(f"a-{node}", node, now, slots))
    return found


def running(run: Run, ranks: list[Rank], per_node: int = RANKS_PER_NODE) -> None:
    """Let a job run for some seconds; that is not measured."""
    measured, run.steps = run.steps, Steps()
    for second in range(1, 4):
        run.health(words(ranks, second, run.now, per_node))
        run.tick()
    run.steps = measured


def lost_agents(count: int) -> Run:
    """All agents of a job fall silent."""
    run, ranks = Run(), [Rank(rank, count) for rank in range(count)]
    running(run, ranks, 1)
    for at in range(count):
        run.steps.take(lambda at=at: run.state.liveness.agent_disconnected(f"a-n{at}", run.now))
    run.now += 31.0
    for _ in range(5):
        run.tick()
    return run


def crashed_ranks(count: int) -> Run:
    """One rank raises, all others fail in their collectives, their agents tell of the processes."""
    run, ranks = Run(), [Rank(rank, count) for rank in range(count)]
    running(run, ranks)
    said = ("DistBackendError", "NCCL error: remote process exited or there was a network error")
    run.frames(
        rank.event("exception", 3, type=kind, message=message)
        for at, rank in enumerate(ranks)
        for kind, message in (said if at != 5 else ("ValueError", "corrupt shard"),)
    )
    run.frames(_deaths(ranks), PER_TICK // RANKS_PER_NODE)
    for _ in range(3):
        run.health(words(ranks, 3, run.now, alive=False))
        run.tick()
    return run


def _deaths(ranks: list[Rank]) -> Iterable[Frame]:
    for at in range(0, len(ranks), RANKS_PER_NODE):
        node = ranks[at].info.node
        agent = SourceInfo(f"a{node}-1", None, 1, None, node, 1, START)
        events = [
            EventBlock("process_death", START + 5.0, 3, {"source": rank.info.source, "rank": rank.info.rank,
                                                         "cause": "exit_code", "exit_code": 1, "how": "pidfd"})
            for rank in ranks[at : at + RANKS_PER_NODE]
        ]  # fmt: skip
        yield Frame(agent, 1, len(events), events)


def rollbacks(count: int) -> Run:
    """One rank goes back again and again."""
    run, rank, step = Run(), Rank(0, 1), 1

    def story() -> Iterable[Frame]:
        nonlocal step
        for number in range(count):
            yield rank.rows(step, 20)
            step += 10
            yield rank.event("segment", step - 1, key=f"k{number}", to_step=step - 1)

    run.frames(story(), 2)
    return run


def restarted_ranks(count: int) -> Run:
    """A job of many ranks trains, ends, and comes up again from a checkpoint without a word."""
    run, ranks = Run(), [Rank(rank, count) for rank in range(count)]
    run.frames(frame for rank in ranks for frame in (rank.event("start"), rank.rows(9, 4)))
    run.frames([ranks[0].event("checkpoint", 10, path="/c/10")])
    running(run, ranks)
    again = [Rank(rank, count, start=2) for rank in range(count)]
    run.health(words(again, 11, run.now))
    run.frames(frame for rank in again for frame in (rank.event("start"), rank.rows(11, 4)))
    for second in range(3):
        run.health(words(again, 15 + second, run.now))
        run.tick()
    return run


def checkpoints(count: int) -> Run:
    """A job whose loss is NaN announces one checkpoint after the other: each may change what is offered."""
    run, rank = Run(), Rank(0, 1)
    run.frames([rank.rows(1, 200), rank.rows(201, 3, scale=math.nan)])
    assert [one.kind for one in run.state.incidents.all()] == ["nonfinite"]
    run.frames(rank.event("checkpoint", 10 + at, path=f"/c/{at}") for at in range(count))
    return run


def metrics_a_row(count: int) -> Run:
    """A job logs rows of many metrics, two sets of them in turns."""
    run, rank = Run(), Rank(0, 1)
    sets = [tuple(f"{kind}/{at}" for at in range(count // 2)) for kind in ("train", "time")]
    run.frames((rank.rows(step + 1, 1, sets[step % 2]) for step in range(400)), 100)
    return run


def tabs(count: int) -> Run:
    """Many browsers look at one run."""
    run, rank = Run(), Rank(0, 1)
    browsers = [Subscriber() for _ in range(count)]
    for browser in browsers:
        run.channel.join(browser)
    for at in range(100):
        run.frames([rank.rows(10 * at + 1, 10)])
        run.frames([rank.event("segment", 10 * at + 5, key=f"k{at}", to_step=10 * at + 5)] if at % 10 == 9 else [])
    return run


#: Name -> (what it does, its four sizes; at the last one no step may be longer than STEP_S).
JOBS: dict[str, tuple[Callable[[int], Run], tuple[int, ...]]] = {
    "lost agents": (lost_agents, (512, 1_024, 2_048, 4_096)),
    "crashed ranks": (crashed_ranks, (512, 1_024, 2_048, 4_096)),
    "rollbacks": (rollbacks, (125, 250, 500, 1_000)),
    "restarted ranks": (restarted_ranks, (2_048, 4_096, 8_192, 16_384)),
    "checkpoints": (checkpoints, (250, 500, 1_000, 2_000)),
    "metrics a row": (metrics_a_row, (24, 48, 96, 192)),
    "browser tabs": (tabs, (25, 50, 100, 200)),
}
