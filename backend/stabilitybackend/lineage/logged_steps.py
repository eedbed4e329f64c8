"""Which steps a process has logged: stretches of even steps, so that a steady log is one of them, however long it is.

A row below the newest step is late if its step was left out before, and a step that is logged again otherwise. The
newest stretches are exact, some dozens of steps of a log in any order; of everything before them it
is assumed that it was logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LATE_STRIDES", "LoggedSteps"]

#: Stretches remembered. A log in order has one; one that arrives out of order begins another at nearly every row.
MAX_STRETCHES = 128
#: Late rows remembered one by one.
MAX_LATE = 1_024
#: A row so many usual strides behind the newest step is not late any more, whatever was logged between them.
LATE_STRIDES = 128
#: Rows of a stretch after which its distance is how the process logs: steps between those are none that it left out,
#: unless others between them were late.
EVEN_ROWS = 16


@dataclass
class LoggedSteps:
    """The steps of one process since it began or went back.

    Attributes:
        first: where the newest stretch began, None before the first row.
        stretches: (first, last, distance) of those before it, rising.
        late: steps that arrived late.
        floor: everything up to this step is taken for logged.
    """

    first: int | None = None
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    floor: int = -1

    def break_off(self, last: int, distance: int) -> None:
        """Note that the newest stretch, of steps so far apart, ended at ``last``; a stretch of one row has none yet."""
        if self.first is not None and self.first != last:
            self.stretches.append((self.first, last, distance))
            self.first = None
            if len(self.stretches) > MAX_STRETCHES:
                self.floor = max(self.floor, self.stretches.pop(0)[1])

    def came_late(self, step: int) -> None:
        """Note a late row."""
        self.late.add(step)
        if len(self.late) > MAX_LATE:
            rising = sorted(self.late)
            self.floor = max(self.floor, rising[MAX_LATE // 2])
            self.late = {one for one in rising if one > self.floor}

    def left_out(self, step: int, last: int, stride: int) -> bool:
        """Return whether ``step`` was left out so far, a little before the newest step ``last``.

        Args:
            stride: distance of the rows of the newest stretch.
        """
        if step <= self.floor or step in self.late or last - step > LATE_STRIDES * stride:
            return False
        newest = [] if self.first is None else [(self.first, last, stride)]
        for begin, end, distance in (*newest, *reversed(self.stretches)):
            if begin <= step <= end:
                even = (end - begin) // distance >= EVEN_ROWS and not any(begin < one < end for one in self.late)
                return (step - begin) % distance != 0 and not even
        return True

    def finest(self, stride: int) -> int:
        """Return the least distance between two of the steps, of the newest stretch and those before it."""
        return min([stride, *(distance for _, _, distance in self.stretches)])

    def go_back(self, fork_step: int, last: int | None, stride: int) -> None:
        """Note that the process continues after ``fork_step``: later steps are new again."""
        if last is not None:
            self.break_off(last, stride)
        self.first = None
        kept = [(begin, min(end, fork_step), distance) for begin, end, distance in self.stretches if begin <= fork_step]
        self.floor = min(self.floor, fork_step)
        self.stretches, self.late = kept, {one for one in self.late if one <= fork_step}
