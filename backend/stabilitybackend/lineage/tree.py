"""The tree of segments of one run, and its effective part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stabilitybackend.base.errors import Conflict, NotFound
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.schema.lineage import Cause, Inferred, Segment, Segments
from stabilityclient.wire import EventBlock

__all__ = ["ROOT_FORK", "FoldedSegment", "PathRange", "SegmentTree", "undoable"]

#: Fork step of the root: every step >= 0 lies after it.
ROOT_FORK = -1


@dataclass
class FoldedSegment:
    """An unbroken stretch of steps as the fold keeps and saves it; ``schema.lineage.Segment`` is its public view.

    Attributes:
        id: 0 for the root, then in the order of creation.
        key: its name among the ranks: "" the root, a command id, ``d-...`` a declared rollback, ``u-...`` inferred.
        parent: id of the parent, None for the root.
        fork_step: the step whose state it starts from; its own steps are > fork_step. ROOT_FORK for the root.
        cause: ``start``, ``command``, ``declared``, ``restart``, or ``resume`` (a launch that did not go back).
        reason: free text of who asked, may be empty.
        command_id: the command that ordered it, else None.
        issuer: author of the order, if any.
        changes: other changes (lr_scale, seed, skip_batches, ...), ordered or declared by the job.
        applied: changes that the job reports, None without a report.
        created: log time of the record that opened it, unix seconds.
        entered: rank -> source id that brought the rank into this segment.
        undone: a user undid this inferred segment: it holds no points and is never the head.
        first_step, last_step: smallest and greatest step seen, None before the first point.
        points: values stored in it, dead ones too.
        returns_to: the discarded segment whose state it went on from: a rollback was undone. None for any other.
        shared_step: of one that returns, the greatest step up to which the path before and the one to it are the same.
        inferred: evidence of an undeclared one, see ``schema.lineage.Segment``.
    """

    id: int
    key: str
    parent: int | None
    fork_step: int
    cause: Cause
    reason: str = ""
    command_id: str | None = None
    issuer: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0
    entered: dict[int, str] = field(default_factory=dict)
    undone: bool = False
    first_step: int | None = None
    last_step: int | None = None
    points: int = 0
    applied: dict[str, Any] | None = None
    returns_to: int | None = None
    shared_step: int | None = None
    inferred: Inferred = ""

    @property
    def kept_step(self) -> int:
        """The greatest step that the path to it shares with the path that the job left for it."""
        return self.fork_step if self.shared_step is None else self.shared_step

    def note_applied(self, applied: Mapping[str, Any]) -> None:
        """Take the changes that a rank reports; where ranks differ, the value shows that."""
        known = self.applied
        differing = {name for name in applied if known is not None and known.get(name, applied[name]) != applied[name]}
        self.applied = {**applied, **(known or {}), **dict.fromkeys(differing, "differs between ranks")}

    @property
    def went_back(self) -> bool:
        """Whether the job went back when it began: a rollback or a restart, which was not undone."""
        return self.parent is not None and not self.undone and self.cause != "resume"

    def saw(self, low: int, high: int, values: int) -> None:
        """Note that ``values`` values at steps ``low..high`` were stored here."""
        self.first_step = low if self.first_step is None else min(self.first_step, low)
        self.last_step = high if self.last_step is None else max(self.last_step, high)
        self.points += values


@dataclass(frozen=True)
class PathRange:
    """The steps ``first..last`` (both inclusive; last None: no end) that a segment contributes to a path."""

    segment: int
    first: int
    last: int | None


class SegmentTree(Stateful):
    """Segments of a run, and the head among them.

    The path to the head is kept up to date: a run that went back a thousand times must not walk the whole path at each
    step. So a segment that is in the tree is moved by ``rehang`` only.
    """

    _segments: list[FoldedSegment] = fresh(lambda: [FoldedSegment(0, "", None, ROOT_FORK, "start")])
    _by_key: dict[str, list[int]] = fresh(lambda: {"": [0]})
    _head: int = 0
    #: The path to the head, and segment -> its last step there, None for no end.
    _path: list[PathRange] = fresh(lambda: [PathRange(0, ROOT_FORK + 1, None)])
    _ends: dict[int, int | None] = fresh(lambda: {0: None})
    #: Segments of which something was not reported to browsers yet, in the order in which it happened.
    _news: dict[int, None] = fresh(dict)

    @property
    def head(self) -> int:
        """Id of the newest segment of the effective timeline."""
        return self._head

    @head.setter
    def head(self, segment: int) -> None:
        self._head = segment
        added = []
        current: int | None = segment
        while current is not None and current not in self._ends:
            added.append(current)
            current = self._segments[current].parent
        while self._path and self._path[-1].segment != current:
            left = self._path.pop().segment
            del self._ends[left]
            self.touch(left)
        for new in reversed(added):
            self._end(self._segments[new].fork_step)
            self._path.append(PathRange(new, self._segments[new].fork_step + 1, None))
            self._ends[new] = None
            self.touch(new)
        self._end(None)

    def _end(self, last: int | None) -> None:
        """Let the last range of the path end at ``last``."""
        if self._path and self._path[-1].last != last:
            end = self._path[-1] = replace(self._path[-1], last=last)
            self._ends[end.segment] = last
            self.touch(end.segment)

    def touch(self, segment: int) -> None:
        """Note that something of a segment changed that browsers show."""
        self._news[segment] = None

    def news(self) -> list[Segment]:
        """Return the segments of which something changed since the last call, as the API has them."""
        labels = self._labels()
        shown, self._news = [self._shown(self._segments[segment], labels) for segment in self._news], {}
        return shown

    def __iter__(self) -> Iterator[FoldedSegment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, segment: int) -> FoldedSegment:
        return self._segments[segment]

    def cuts(self) -> dict[int, list[int]]:
        """Return segment -> fork steps of its children: where its points may end on some path."""
        found: dict[int, list[int]] = {}
        for segment in self._segments:
            if segment.parent is not None:
                found.setdefault(segment.parent, []).append(segment.fork_step)
        return found

    def with_key(self, key: str) -> list[FoldedSegment]:
        """Return the segments that ranks call ``key``, oldest first (several after a restart that repeats itself)."""
        return [self._segments[i] for i in self._by_key.get(key, [])]

    def new_key(self, key: str) -> str:
        """Return ``key``, numbered where there is one: who undoes a restart names it by its key."""
        names = (key, *(f"{key}.{count}" for count in range(2, len(self._segments) + 2)))
        return next(name for name in names if name not in self._by_key)

    def fork(self, origin: int, to_step: int, *, key: str, cause: Cause, created: float, **facts: Any) -> FoldedSegment:
        """Add a segment that starts from the state after ``to_step`` on the path of ``origin``.

        The parent is the segment of that path which holds ``to_step``, so that a rollback past an earlier fork hangs
        from the older segment. The head is unchanged.

        Args:
            origin: the segment the job was in.
            to_step: the new segment's own steps are > to_step. Anything below 0 means from the very beginning.
            key, cause, created: as in FoldedSegment.
            facts: further fields of FoldedSegment.
        """
        fork_step = max(to_step, ROOT_FORK)
        parent = self.segment_at(origin, fork_step)
        segment = FoldedSegment(len(self._segments), key, parent, fork_step, cause, created=created, **facts)
        if cause == "declared" and segment.applied is None:
            segment.applied = dict(segment.changes)  # declared by the job
        self._segments.append(segment)
        self._by_key.setdefault(key, []).append(segment.id)
        self.touch(segment.id)
        return segment

    def note_applied(self, event: EventBlock) -> None:
        """Take a rank's report of its changes in the rollback that it obeyed; any other event changes nothing."""
        if event.type == "command" and isinstance(event.data.get("applied"), dict):
            for segment in self.with_key(str(event.data.get("command_id"))):
                segment.note_applied(event.data["applied"])
                self.touch(segment.id)

    def rehang(self, segment: FoldedSegment, origin: int, fork_step: int) -> bool:
        """Let ``segment`` start from ``fork_step`` on the path of ``origin``; return whether that changed anything."""
        parent = self.segment_at(origin, fork_step)
        if (segment.parent, segment.fork_step) == (parent, fork_step) or self.is_ancestor(segment.id, parent):
            return False
        segment.parent, segment.fork_step = parent, fork_step
        for part in self._path:
            self.touch(part.segment)
        self.touch(segment.id)
        self._path, self._ends = [], {}
        self.head = self._head
        return True

    def reaches_past(self, origin: int, step: int) -> bool:
        """Return whether the path of ``origin`` holds a point after ``step``."""
        for part in reversed(self.path(origin, since=step)):
            last = self._segments[part.segment].last_step
            if last is not None and (last if part.last is None else min(last, part.last)) > step:
                return True
        return False

    def path(self, segment: int | None = None, since: int = ROOT_FORK) -> Sequence[PathRange]:
        """Return the ranges from the root to ``segment`` (default: the head), each cut at its child's fork step.

        Args:
            since: leave out the ranges that end before this step, as far as those after them go.
        """
        if segment is None and since <= ROOT_FORK:
            return tuple(self._path)
        ranges: list[PathRange] = []
        current: int | None = self.head if segment is None else segment
        last: int | None = None
        while current is not None and (last is None or last >= since):
            node = self._segments[current]
            ranges.append(PathRange(current, node.fork_step + 1, last))
            last = node.fork_step
            current = node.parent
        return ranges[::-1]

    def segment_at(self, origin: int, step: int) -> int:
        """Return the segment on the path of ``origin`` to which ``step`` belongs."""
        current = self._segments[origin]
        while current.parent is not None and step <= current.fork_step:
            current = self._segments[current.parent]
        return current.id

    def is_ancestor(self, ancestor: int, segment: int) -> bool:
        """Return whether ``ancestor`` is ``segment`` or lies on its path."""
        if segment == self._head:
            return ancestor in self._ends
        current: int | None = segment
        while current is not None:
            if current == ancestor:
                return True
            current = self._segments[current].parent
        return False

    def dead_after(self, segment: int) -> int | None:
        """Return the step after which the points of ``segment`` are dead: None for none, its fork step for all."""
        return self._ends[segment] if segment in self._ends else self._segments[segment].fork_step

    def is_dead(self, segment: int, step: int) -> bool:
        """Return whether a point of ``segment`` at ``step`` is off the effective timeline."""
        limit = self.dead_after(segment)
        return limit is not None and step > limit

    def view(self) -> Segments:
        """Return the lineage as the API has it."""
        labels = self._labels()
        return Segments(self._head, [self._shown(segment, labels) for segment in self._segments])

    def _labels(self) -> dict[int, str]:
        """Return segment -> short name of its fork: R1, R2 ... a rollback, S1 ... a restart from an earlier step."""
        counts = {"R": 0, "S": 0}
        found = {}
        for segment in self._segments:
            if segment.went_back:
                letter = "S" if segment.cause == "restart" else "R"
                counts[letter] += 1
                found[segment.id] = f"{letter}{counts[letter]}"
        return found

    def _shown(self, segment: FoldedSegment, labels: Mapping[int, str]) -> Segment:
        first, last, end = segment.first_step, segment.last_step, self.dead_after(segment.id)
        steps = 0 if first is None or last is None else last - first + 1
        discarded = 0 if not steps or end is None else min(steps, max(0, (last or 0) - end))
        return Segment(
            id=segment.id,
            key=segment.key,
            parent=segment.parent,
            fork_step=None if segment.parent is None else segment.fork_step,
            label=labels.get(segment.id, ""),
            first_step=first,
            last_step=last,
            dead_after=end,
            kept=steps - discarded,
            discarded=discarded,
            on_head_path=segment.id in self._ends,
            cause=segment.cause,
            reason=segment.reason,
            command_id=segment.command_id,
            issuer=segment.issuer,
            changes=segment.changes,
            applied=segment.applied,
            created=segment.created,
            ranks=sorted(segment.entered),
            points=segment.points,
            undone=segment.undone,
            returns_to=segment.returns_to,
            shared_step=segment.shared_step,
            inferred=segment.inferred,
        )


def undoable(run_id: str, tree: SegmentTree, segment: int) -> list[FoldedSegment]:
    """Return the segment and all like it, if it was inferred from steps alone.

    A process that goes back while it runs repeats that, so its forks form a series. A restart is alone, and nothing
    may hang from it.

    Raises:
        NotFound: there is no such segment.
        Conflict: it was declared or ordered, or other segments hang from a restart.
    """
    if not 0 < segment < len(tree):
        raise NotFound(f"run {run_id} has no segment {segment}", hint="list them with GET .../segments")
    found = tree[segment]
    if found.inferred == "steps":
        return [one for one in tree if one.inferred == "steps"]
    if found.cause != "restart" or any(s.parent == segment for s in tree):
        raise Conflict(
            f"segment {segment} (cause {found.cause}) can't be undone",
            hint="only a segment that nobody declared and from which no other hangs can be",
        )
    return [found]
