"""What a detector remembers of a run's whole effective path, beside the state that is saved with each snapshot."""

from __future__ import annotations

from stabilitybackend.base.stateful import Stateful, fresh

#: Points of a block: what is remembered grows by whole ones.
PAST_BLOCK = 16
#: Blocks that are kept, newest ones: a million points and 2.5 bytes each. A run logs so many in a month, one a second.
MAX_PAST_BLOCKS = 65_536

__all__ = ["MAX_PAST_BLOCKS", "PAST_BLOCK", "LongPast"]


class LongPast(Stateful):
    """One byte a point of one metric, which only grows at its end.

    The bank keeps it once and not in each snapshot: after a rewind the detector says how many blocks its state knew,
    and what came after them is cut. So the state of a detector stays small, whatever the length of the run.

    Attributes:
        data: PAST_BLOCK bytes a block, oldest first.
        steps: first step of each block.
        dropped: blocks that were forgotten before these, since there were more than MAX_PAST_BLOCKS.

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
        """Points that were taken, with those that were forgotten."""
        return PAST_BLOCK * (self.dropped + len(self.steps))

    def copy(self) -> LongPast:
        """Return the same in an object of its own, for another thread."""
        other = LongPast()
        other.data, other.steps, other.dropped = bytearray(self.data), list(self.steps), self.dropped
        return other

    def cut(self, number: int) -> None:
        """Forget the blocks from ``number`` on; what was forgotten before them does not come back."""
        kept = max(0, number - self.dropped)
        self.dropped = min(self.dropped, number)
        if kept < len(self.steps):
            del self.data[kept * PAST_BLOCK :], self.steps[kept:]
