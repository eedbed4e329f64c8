"""Jobs that crash and are launched again, with what the trainer itself knows: the branch of each row it ever logged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["CrashingJob"]

#: Rows of a launch that went back until it is believed: the first and two that go on from it, of each rank.
BELIEVED_ROWS = 4
#: Rows a frame holds at most.
ROWS_A_FRAME = 7


@dataclass
class _Launch:
    """What the trainer knows of one launch.

    Attributes:
        parent: launch whose checkpoint it loaded, None for the first. fork_step: step of that checkpoint.
        rows: rank -> the steps that it logged.
    """

    number: int
    parent: int | None
    fork_step: int
    rows: dict[int, list[int]] = field(default_factory=dict)


class CrashingJob:
    """A job of some ranks on some nodes: it trains, crashes at any moment and goes on from its newest checkpoint.

    Ranks of one launch start within 0.3 s, and the next launch follows 0.5 to 2 s after the last process of the one
    before has ended: closer than that nobody could tell two launches on different nodes apart.

    Args:
        draw: decides.
        ranks: how many. nodes: how many they are spread over.
        strides: rank r logs every ``strides[r]`` steps.
        launches: how often it is launched, 1 or more.

    Attributes:
        sources: source -> its frames, in its own order. node_of: source -> its node.
    """

    def __init__(
        self, draw: random.Random, ranks: int, nodes: int, strides: list[int], launches: int, *, told_apart: bool = True
    ) -> None:
        self._draw, self._ranks, self._nodes, self._strides = draw, ranks, nodes, strides
        self._told_apart = told_apart
        self.sources: dict[str, list[Frame]] = {}
        self.node_of: dict[str, str] = {}
        self._seq: dict[str, int] = {}
        self._launches: list[_Launch] = []
        #: Newest checkpoint: step and the launch that wrote it.
        self._saved: tuple[int, int | None] = (0, None)
        now = 1000.0
        for number in range(launches):
            now = self._launch(number, now, last=number == launches - 1) + draw.uniform(0.5, 2.0)

    def value(self, launch: int, rank: int, step: int) -> float:
        """Return a value that tells who logged it."""
        return launch * 100.0 + rank + step / 1e6

    def effective(self, rank: int) -> dict[int, float]:
        """Return step -> value of what the model in memory really learned, as the trainer knows it."""
        curve: dict[int, float] = {}
        number: int | None = self._newest_that_logged()
        last = float("inf")
        while number is not None:
            launch = self._launches[number]
            for step in launch.rows.get(rank, ()):
                if step <= last:
                    curve[step] = self.value(number, rank, step)
            last, number = min(last, launch.fork_step), launch.parent
        return curve

    def logged(self, rank: int) -> int:
        """Return how many rows a rank ever logged."""
        return sum(len(launch.rows.get(rank, ())) for launch in self._launches)

    def _newest_that_logged(self) -> int:
        return next(one.number for one in reversed(self._launches) if any(one.rows.values()))

    # --- what happens --------------------------------------------------------------------------------------------

    def _launch(self, number: int, now: float, *, last: bool) -> float:
        """Train until the crash; return when the last process ended."""
        draw, (fork_step, owner) = self._draw, self._saved
        launch = _Launch(number, owner, fork_step)
        self._launches.append(launch)
        widest = max(self._strides)
        length = draw.choice([0, 1, 2, draw.randint(3, 12), draw.randint(10, 40)]) if not last else 0
        length = length if not last and number else draw.randint(BELIEVED_ROWS + 2, BELIEVED_ROWS + 20) * widest
        every = draw.randint(BELIEVED_ROWS, 12) * widest
        dead_early = {rank for rank in range(self._ranks) if not last and number and draw.random() < 0.25}
        reached = fork_step + max(0, length - 2)
        saves = [] if dead_early else [step for step in range(fork_step + 1, reached + 1) if step % every == 0]
        begin = now + draw.uniform(1.0, 4.0)
        end = begin
        for rank in range(self._ranks):
            if rank in dead_early and draw.random() < 0.5:
                continue  # it died before init()
            started = now + draw.uniform(0.0, 0.3)
            source = f"r{rank}-{number}"
            info = SourceInfo(
                source=source, rank=rank, world_size=self._ranks, local_rank=rank // self._nodes,
                node=f"n{rank % self._nodes}", pid=1000 * number + rank + 2, started=started,
                generation=number if self._told_apart else 0,
            )  # fmt: skip
            self.sources[source], self.node_of[source] = [], info.node
            self._say(info, EventBlock("start", started), 1)
            if rank in dead_early:
                continue
            # Collectives keep the ranks within a step or two of each other.
            reach = fork_step + max(0, length - draw.randint(0, 2))
            steps = [s for s in range(fork_step + 1, reach + 1) if s % self._strides[rank] == 0]
            launch.rows[rank] = steps
            self._rows(info, launch, rank, steps, begin, saves if rank == 0 else [])
            end = max(end, begin + 0.1 * (reach - fork_step))
        if saves:
            self._saved = (saves[-1], number)
        return end + 0.05

    def _rows(
        self, info: SourceInfo, launch: _Launch, rank: int, steps: list[int], begin: float, saves: list[int]
    ) -> None:
        while steps:
            cut = self._draw.randint(1, ROWS_A_FRAME)
            part, steps = steps[:cut], steps[cut:]
            times = [begin + 0.1 * (step - launch.fork_step) for step in part]
            values = [self.value(launch.number, rank, step) for step in part]
            block = PointsBlock(
                ["loss"],
                np.array(part, "<i8").tobytes(),
                np.array(times, "<f8").tobytes(),
                np.array(values, "<f8").tobytes(),
            )
            self._say(info, block, len(part))
            for step in part:
                if step in saves:
                    self._say(info, EventBlock("checkpoint", times[-1], step, {"path": f"c/{launch.number}/{step}"}), 1)

    def _say(self, info: SourceInfo, block: PointsBlock | EventBlock, records: int) -> None:
        first = self._seq.get(info.source, 0) + 1
        self._seq[info.source] = first + records - 1
        self.sources[info.source].append(Frame(info, first, self._seq[info.source], [block]))

    # --- orders of arrival ---------------------------------------------------------------------------------------

    def as_it_happened(self) -> Iterator[Frame]:
        """By log time, as healthy agents send."""
        every = [(_time(frame), i, frame) for frames in self.sources.values() for i, frame in enumerate(frames)]
        for _, _, frame in sorted(every, key=lambda one: (one[0], one[2].source.source, one[1])):
            yield frame

    def nodes_apart(self, draw: random.Random) -> Iterator[Frame]:
        """Each node in its own order, the nodes in any: one had no network for a while."""
        lanes: dict[str, list[Frame]] = {}
        for frame in self.as_it_happened():
            lanes.setdefault(frame.source.node, []).append(frame)
        yield from _shuffled(list(lanes.values()), draw)

    def after_losses(self, draw: random.Random) -> Iterator[Frame]:
        """As it happened, but that Redis loses its newest messages now and then: the agent sends those of all its
        sources again, the one first that started first."""
        left, held = list(self.as_it_happened()), list[Frame]()
        while left:
            count = draw.randint(3, 40)
            held, left = held + left[:count], left[count:]
            if lost := draw.choice([0, draw.randint(1, 25)]):
                meanwhile = draw.randint(0, 20)
                again = held[-lost:] + left[:meanwhile]
                held, left = held[:-lost], left[meanwhile:]
                held += sorted(again, key=lambda frame: (frame.source.started, frame.source.source))
        yield from held

    def in_any_order(self, draw: random.Random) -> Iterator[Frame]:
        """Each source in its own order, the sources in any, but that a node's agent says of all which started first."""
        left = {source: list(reversed(frames)) for source, frames in self.sources.items()}
        unsaid = {f"n{node}": [s for s in left if self.node_of[s] == f"n{node}"] for node in range(self._nodes)}
        for sources in unsaid.values():
            sources.sort(key=lambda source: self.sources[source][0].source.started, reverse=True)
        open_now: list[str] = []
        while any(left.values()):
            nodes = [node for node, sources in unsaid.items() if sources]
            if nodes and (not open_now or draw.random() < 0.3):
                open_now.append(unsaid[draw.choice(nodes)].pop())
                yield left[open_now[-1]].pop()
            source = draw.choice(open_now)
            for _ in range(draw.choice([1, 1, 3, 20])):
                if left[source]:
                    yield left[source].pop()
            open_now = [one for one in open_now if left[one]]


def _shuffled(lanes: list[list[Frame]], draw: random.Random) -> Iterator[Frame]:
    left = [list(reversed(lane)) for lane in lanes if lane]
    while left:
        lane = draw.choice(left)
        for _ in range(draw.choice([1, 1, 3, 20])):
            if lane:
                yield lane.pop()
        left = [one for one in left if one]


def _time(frame: Frame) -> float:
    block = frame.blocks[0]
    return block.time if isinstance(block, EventBlock) else float(np.frombuffer(block.times, "<f8")[-1])
