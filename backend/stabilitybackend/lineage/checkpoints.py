"""The checkpoints that a job announced, found by path and by step without looking at all of them."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.tree import SegmentTree
from stabilitybackend.schema.events import CheckpointSeen
from stabilitybackend.schema.lineage import why_lost
from stabilityclient.wire import EventBlock

__all__ = ["CheckpointBook", "CheckpointInspection", "LoggedCheckpoint", "UsableCheckpoints"]

#: Looks whose checkpoint was not announced yet that are kept: agents and ranks report in streams of their own.
MAX_EARLY = 64
#: Folders of the job's own checkpoints that are remembered: one a launch, where each has its own.
MAX_HOMES = 64
#: Reason why one is used only by order of a person.
UNVERIFIED = (
    "no agent of the job has seen it, and no earlier checkpoint of the job lies in its folder: anybody who may "
    "send data for this run can have named it"
)
_NUMBER = re.compile(r"\d+")
#: Note where each node sees a part of the files on a disk of its own: together they may be whole.
IN_PARTS = "each node sees a part of its files"


@dataclass
class CheckpointInspection:
    """Findings of the agents at a path, as of the newest.

    Attributes:
        problem: missing or incomplete parts, half a sentence; where ``complete`` is None, why that is unknown.
        bad: files that all nodes miss. node: which of them looked last.
        parts: the nodes miss different files, so that the whole can't be judged.
    """

    kind: str
    complete: bool | None
    writing: bool = False
    problem: str = ""
    bad: list[str] = field(default_factory=list)
    size_bytes: int | None = None
    files: int | None = None
    world_size: int | None = None
    loads_with: Literal["any", "same"] | None = None
    node: str = ""
    parts: bool = False

    @classmethod
    def of(cls, seen: CheckpointSeen, node: str) -> CheckpointInspection:
        """Return the findings of one node's agent."""
        return cls(
            seen.kind, seen.complete, seen.writing, seen.problem, list(seen.bad), seen.size_bytes, seen.files,
            seen.world_size, seen.loads_with, node,
        )  # fmt: skip

    def after(self, earlier: CheckpointInspection | None) -> CheckpointInspection:
        """Return this look merged with an earlier one of the same checkpoint, perhaps of another node."""
        if earlier is not None and earlier.complete is not None and self.complete is None and self.problem:
            return earlier  # of a node that can't look there
        if earlier is None or self.complete is not False or self.node == earlier.node:
            return self
        if not earlier.parts and earlier.complete is not False:
            return self
        both = [name for name in self.bad if name in earlier.bad]
        if both and not earlier.parts:
            return replace(self, bad=both)
        return replace(self, complete=None, writing=False, problem=IN_PARTS, bad=[], parts=True)


@dataclass
class LoggedCheckpoint:
    """A checkpoint that the job announced. Other fields of ``schema.lineage.Checkpoint`` depend on forks and incidents.

    Attributes:
        took_s: seconds that the save held up training, of the slowest rank.
        look: findings of the agents there, None where none has looked.
        unverified: no proof that a rank of the run wrote it.
    """

    step: int
    path: str
    segment: int
    time: float
    available: bool = True
    took_s: float | None = None
    look: CheckpointInspection | None = None
    unverified: bool = False

    def unfit(self, world_size: int) -> str:
        """Return why a job of so many ranks is not offered it although it is there, "" where it is."""
        return self.unloadable(world_size) or (UNVERIFIED if self.unverified else "")

    def unloadable(self, world_size: int) -> str:
        """Return why a job of so many ranks can't load it, "" without a reason."""
        look = self.look
        if look is None:
            return ""
        if look.writing:
            return f"it is still being written: {look.problem}"
        if look.complete is False:
            return f"it is incomplete: {look.problem}"
        if look.loads_with == "same" and look.world_size not in (None, world_size):
            return f"{look.world_size} ranks wrote it and as many can load it; the job has {world_size}"
        return ""

    @property
    def whole(self) -> bool:
        """Whether it is there with nothing missing, as far as anybody knows, and a rank of the run wrote it."""
        if not self.available or self.unverified:
            return False
        return self.look is None or not (self.look.writing or self.look.complete is False)


class CheckpointBook(Stateful):
    """The checkpoints of one run, in the order in which they were announced. Of one path the newest is available."""

    _all: list[LoggedCheckpoint] = fresh(list)
    #: Path -> step, look.
    _early: dict[str, tuple[int, CheckpointInspection]] = fresh(dict)
    #: Folders in which ranks of the run save; see ``_home``.
    _homes: list[str] = fresh(list)

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[int] = []
        self._by_path: dict[str, list[LoggedCheckpoint]] = {}
        #: Segment -> rising steps of those that are there and whole.
        self._there: dict[int, list[int]] = {}
        #: World sizes of those that load with the number of ranks that wrote them only.
        self._bound: set[int] = set()

    def restored(self) -> None:
        known, early, homes = self._all, self._early, self._homes
        self.__init__()  # type: ignore[misc]  # the empty book, spelled once
        self._early, self._homes = early, homes
        for checkpoint in known:
            self._put(checkpoint)

    def __iter__(self) -> Iterator[LoggedCheckpoint]:
        return iter(self._all)

    def __reversed__(self) -> Iterator[LoggedCheckpoint]:
        return reversed(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def take(self, event: EventBlock, segment: int, node: str, *, trains: bool) -> None:
        """Take in an event about a checkpoint, which a rank saved in ``segment`` or the agent of a node looked at.

        Args:
            trains: the rank, or for an agent one of its node, has logged rows: it is a rank of the run.
        """
        step, path = event.step, event.data["path"]
        if event.type == "checkpoint_gone":
            self.gone(step, path)
        elif step is not None and event.type == "checkpoint_seen":
            self.seen(step, path, CheckpointInspection.of(msgspec.convert(event.data, CheckpointSeen), node))
            if trains:
                self._verify(step, path)
        elif step is not None:
            own = self._is_own(path, trains)
            self.add(step, path, segment, event.time, event.data.get("took_s"), unverified=not own)
            if own:
                self._verify(step, path)

    def _is_own(self, path: str, trains: bool) -> bool:
        """Return whether a path is where the run saves: in one of its folders, or the first that a rank named."""
        return not _homes_of(path).isdisjoint(self._homes) if self._homes else trains

    def _verify(self, step: int, path: str) -> None:
        """Take note that a rank of the run wrote the newest one at a path, unless it is marked as unavailable."""
        for checkpoint in self._by_path.get(path, ())[-1:]:
            look = checkpoint.look
            if checkpoint.step != step or (look is not None and look.complete is None and look.problem):
                return
            if checkpoint.unverified:
                self._change(checkpoint, unverified=False)
            home = _home(path)
            if home not in self._homes:
                self._homes = [*self._homes, home][-MAX_HOMES:]

    def add(
        self, step: int, path: str, segment: int, time: float, took_s: float | None = None, *, unverified: bool = False
    ) -> None:
        """Take one in; the same one from another rank changes nothing, another one at its path is written over.

        Args:
            took_s: seconds that the save held up this rank, None where it did not tell.
            unverified: no proof that a rank of the run wrote it.
        """
        known, look = self._by_path.get(path), None
        if known and known[-1].available:
            if (known[-1].step, known[-1].segment) == (step, segment):
                known[-1].took_s = max(filter(None, (known[-1].took_s, took_s)), default=None)
                return
            if known[-1].step == step:
                look = known[-1].look  # to the agents it is the same one
            self._change(known[-1], available=False)  # the dead branch's content is no longer there
        early = self._early.get(path)
        if early is not None and early[0] == step:
            look = self._early.pop(path)[1]
        self._put(LoggedCheckpoint(step, path, segment, time, took_s=took_s, look=look, unverified=unverified))

    def _put(self, checkpoint: LoggedCheckpoint) -> None:
        self._all.append(checkpoint)
        self._by_path.setdefault(checkpoint.path, []).append(checkpoint)
        insort(self._steps, checkpoint.step)
        self._note_size(checkpoint.look)
        there = self._there.setdefault(checkpoint.segment, [])
        if checkpoint.whole:
            insort(there, checkpoint.step)

    def _note_size(self, look: CheckpointInspection | None) -> None:
        if look is not None and look.loads_with == "same" and look.world_size is not None:
            self._bound.add(look.world_size)

    def gone(self, step: int | None, path: str) -> None:
        """Take note that one is no longer there."""
        for checkpoint in self._by_path.get(path, ())[-1:]:
            if checkpoint.step == step and checkpoint.available:
                self._change(checkpoint, available=False)

    def seen(self, step: int, path: str, look: CheckpointInspection) -> None:
        """Take note of an agent's findings; those of one announced later are kept until then."""
        newest = self._by_path.get(path, ())[-1:]
        for checkpoint in newest:
            if checkpoint.step == step and checkpoint.available:
                self._change(checkpoint, look=look.after(checkpoint.look))
                return
        early = self._early.pop(path, None)
        self._early[path] = (step, look.after(early[1] if early is not None and early[0] == step else None))
        while len(self._early) > MAX_EARLY:
            del self._early[next(iter(self._early))]

    def _change(self, checkpoint: LoggedCheckpoint, **facts: Any) -> None:
        before = checkpoint.whole
        self._note_size(facts.get("look"))
        for name, value in facts.items():
            setattr(checkpoint, name, value)
        steps = self._there[checkpoint.segment]
        if before and not checkpoint.whole:
            del steps[bisect_left(steps, checkpoint.step)]
        elif checkpoint.whole and not before:
            insort(steps, checkpoint.step)

    def newest_step(self, low: int, below: int) -> int | None:
        """Return the greatest step of any with ``low <= step < below``, None where there is none."""
        at = bisect_left(self._steps, below) - 1
        return self._steps[at] if at >= 0 and self._steps[at] >= low else None

    def usable(self, tree: SegmentTree, world_size: int) -> UsableCheckpoints:
        """Return those that a job of so many ranks can go back to: there, whole, and not dead in ``tree``."""
        there = self._there
        if self._bound - {world_size}:
            there = {segment: list[int]() for segment in there}
            for checkpoint in self._all:
                if checkpoint.whole and not checkpoint.unfit(world_size):
                    insort(there[checkpoint.segment], checkpoint.step)
        return UsableCheckpoints(there, tree, self._all, world_size)

    def at(self, paths: Iterable[str]) -> list[LoggedCheckpoint]:
        """Return those of some paths, newest first in each."""
        return [checkpoint for path in paths for checkpoint in reversed(self._by_path.get(path, ()))]


def _home(path: str) -> str:
    """Return the folder of a checkpoint, with any number as the number of its innermost folder: ``out/step-#/``.

    Not of a bucket or a folder of the root: another number belongs to another owner.
    """
    above, _, folder = path.rpartition("/")[0].rpartition("/")
    outermost = above.endswith("/") or (not above and path.startswith("/"))
    return f"{above}/{folder if outermost else _NUMBER.sub('#', folder)}/"


def _homes_of(path: str) -> set[str]:
    """Return the folders, as ``_home`` writes them, in which a path lies at any depth."""
    parts = path.split("/")
    if ".." in parts:
        return set()
    return {_home("/".join(parts[:end])) for end in range(min(2, len(parts)), len(parts) + 1)}


class UsableCheckpoints:
    """The steps of the checkpoints that can be gone back to now, found without looking at each of them.

    Args:
        there: segment -> rising steps of its available and whole ones. tree: decides which are dead.
        every: all that were announced. world_size: ranks of the job.
    """

    def __init__(
        self, there: dict[int, list[int]], tree: SegmentTree, every: Sequence[LoggedCheckpoint], world_size: int
    ) -> None:
        self._world_size = world_size
        self._there = there
        self._tree = tree
        self._every = every

    def newest(self, at_most: float = math.inf) -> int | None:
        """Return the greatest step that is at most ``at_most``, None where there is none."""
        found = []
        for segment, steps in self._there.items():
            dead_after = self._tree.dead_after(segment)
            at = bisect_right(steps, at_most if dead_after is None else min(at_most, dead_after))
            found += steps[max(at - 1, 0) : at]
        return max(found, default=None)

    def oldest(self) -> int | None:
        """Return the smallest step, None where there is none."""
        firsts = ((steps[0], self._tree.dead_after(segment)) for segment, steps in self._there.items() if steps)
        return min((step for step, dead_after in firsts if dead_after is None or step <= dead_after), default=None)

    def left_on(self, segment: int) -> bool:
        """Return whether a segment has some beyond its effective part: its discarded part can be resumed."""
        steps = self._there.get(segment)
        return self._tree.is_dead(segment, steps[-1]) if steps else False

    def lost(self, at_most: float) -> tuple[int, str] | None:
        """Return the greatest step at most ``at_most`` of those that can't be used, and why; looks at each of them."""
        lost = (
            (c.step, why_lost(c.available, unfit))
            for c in self._every
            if c.step <= at_most and not self._tree.is_dead(c.segment, c.step)
            for unfit in [c.unfit(self._world_size)]
            if unfit or not c.available
        )
        return max(lost, default=None)
