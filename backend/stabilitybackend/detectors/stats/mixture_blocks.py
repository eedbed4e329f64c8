"""What a run has taken of each data set since a step, in blocks of rows: bounded, however long it goes on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["BLOCK_ROWS", "Block", "Taken"]

#: Rows of a block: two of them decide at the earliest.
BLOCK_ROWS = 8
#: Blocks that are kept one by one; beyond it the older half is joined in pairs, so an old onset is less exact.
MAX_BLOCKS = 256
#: Newest blocks that the spread is measured over, 2,048 rows: 15 differences of stretches of 128 rows.
SPREAD_BLOCKS = 256


@dataclass(slots=True)
class Block:
    """Some rows: the first and last step, how many, and what they took in all and of each data set."""

    first: int
    last: int
    rows: int = 0
    total: float = 0.0
    of: dict[str, float] = field(default_factory=dict)

    def add(self, other: Block) -> None:
        """Join the rows of ``other``, which follow."""
        self.last, self.rows, self.total = other.last, self.rows + other.rows, self.total + other.total
        for name, taken in other.of.items():
            self.of[name] = self.of.get(name, 0.0) + taken

    def share(self, name: str) -> float:
        """Return the share of a data set, 0 to 1."""
        return self.of.get(name, 0.0) / self.total if self.total > 0 else 0.0


@dataclass(slots=True)
class Taken:
    """What was taken since a step, and how the shares of blocks vary (over resumes, too)."""

    blocks: list[Block] = field(default_factory=list)
    open: Block | None = None
    #: Data set -> its shares in the newest blocks, oldest first.
    shares: dict[str, deque[float]] = field(default_factory=dict)

    def row(self, step: int, of: dict[str, float]) -> bool:
        """Take a row; return whether it ended a block."""
        if self.open is None:
            self.open = Block(step, step)
        self.open.add(Block(step, step, 1, sum(of.values()), of))
        if self.open.rows < BLOCK_ROWS:
            return False
        block, self.open = self.open, None
        self.blocks.append(block)
        for name in {*self.shares, *block.of}:
            self.shares.setdefault(name, deque(maxlen=SPREAD_BLOCKS)).append(block.share(name))
        if len(self.blocks) > MAX_BLOCKS:
            self._join()
        return True

    def restart(self) -> None:
        """Forget what was taken: from here on it is counted anew. How shares vary stays known."""
        self.blocks, self.open = [], None

    def newest(self, blocks: int) -> Block:
        """Return the newest blocks, or all that there are, as one."""
        found = Block(self.blocks[-1].first, self.blocks[-1].last)
        for block in reversed(self.blocks[-blocks:]):
            found.add(block)
            found.first, found.last = block.first, self.blocks[-1].last
        return found

    def since(self, step: int) -> Block:
        """Return the blocks that begin at or after ``step`` as one; empty where there is none."""
        found = Block(step, step)
        for block in self.blocks:
            if block.first >= step:
                found.add(block)
        return found

    def onset(self, name: str, declared: float, realised: float) -> int:
        """Return the step since which a share is ``realised``: where the sum of what is above half of the way turns."""
        sign, middle = 1.0 if realised > declared else -1.0, 0.5 * (declared + realised)
        best, total, onset = 0.0, 0.0, self.blocks[0].first
        for block in self.blocks:
            if total < best:
                best, onset = total, block.first
            total += sign * (block.of.get(name, 0.0) - middle * block.total)
        return onset

    def _join(self) -> None:
        half = MAX_BLOCKS // 2
        old, joined = self.blocks[:half], []
        for first, second in zip(old[::2], old[1::2], strict=True):
            first.add(second)
            joined.append(first)
        self.blocks = joined + self.blocks[half:]
