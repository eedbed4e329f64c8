"""A detector's memory of a run's whole effective path, besides the state in each snapshot."""

from __future__ import annotations

from stabilitybackend.base.stateful import Stateful, fresh

#: Points of a block: the memory grows by whole ones.
PAST_BLOCK = 16
#: Blocks kept, newest ones: a million points and 2.5 bytes each. A run logs so many in a month, one a second.
MAX_PAST_BLOCKS = 65_536

__all__ = ["MAX_PAST_BLOCKS", "PAST_BLOCK", "LongPast"]


class LongPast(Stateful):
    """One byte a point of one metric, append-only.

    The bank keeps it once and not in each snapshot: after a rewind the detector gives the number of blocks in its
    state, and later ones are cut. So the state of a detector stays small, for any length of the run.

    Attributes:
        data: PAST_BLOCK bytes a block, oldest first.
        steps: first step of each block.
        dropped: older blocks dropped beyond MAX_PAST_BLOCKS.

    Example:
        >>> past = LongPast()
        >>> for block in range(3):
        ...     past.add(block, 16 * block, bytes([block]) * 16)
        >>> past.add(1, 16, bytes([9]) * 16)  # the run went back to step 16
        >>> past.steps, past.data[-1]
        ([0, 16], 9)
    """

    data: bytearray = fresh(bytearray)
    steps: list[int] = fresh(list)
    dropped: int = 0

    def add(self, number: int, step: int, block: bytes) -> None:
        """Append block ``number`` of the run, counted from 0, which begins at ``step``; later ones are forgotten."""
        self.cut(number)
        self.data += block
        self.steps.append(step)
        if len(self.steps) > MAX_PAST_BLOCKS:
            half = MAX_PAST_BLOCKS // 2
            del self.data[: half * PAST_BLOCK], self.steps[:half]
            self.dropped += half

    @property
    def points(self) -> int:
        """Points taken, with dropped ones."""
        return PAST_BLOCK * (self.dropped + len(self.steps))

    def copy(self) -> LongPast:
        """Return the same in an object of its own, for another thread."""
        other = LongPast()
        other.data, other.steps, other.dropped = bytearray(self.data), list(self.steps), self.dropped
        return other

    def cut(self, number: int) -> None:
        """Drop the blocks from ``number`` on; older dropped ones stay dropped."""
        kept = max(0, number - self.dropped)
        self.dropped = min(self.dropped, number)
        if kept < len(self.steps):
            del self.data[kept * PAST_BLOCK :], self.steps[kept:]
