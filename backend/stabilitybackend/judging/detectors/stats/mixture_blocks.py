"""Counts of each data set since a step, in blocks of rows: bounded for any length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .mixture_band import Spread

__all__ = ["BLOCK_ROWS", "Block", "Taken"]

#: Rows of a block: two of them decide at the earliest.
BLOCK_ROWS = 8
#: Single blocks; beyond it the older half is joined in pairs, so an old onset is less exact.
MAX_BLOCKS = 256


@dataclass(slots=True)
class Block:
    """Some rows: first and last step, number, and counts in total and of each data set."""

    first: int
    last: int
    rows: int = 0
    total: float = 0.0
    of: dict[str, float] = field(default_factory=dict)

    def row(self, step: int, of: Mapping[str, float], total: float) -> None:
        """Take a row."""
        self.last, self.rows, self.total = step, self.rows + 1, self.total + total
        mine = self.of
        for name, taken in of.items():
            mine[name] = mine.get(name, 0.0) + taken

    def join(self, other: Block) -> None:
        """Add the rows of the adjacent ``other``."""
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.rows, self.total = self.rows + other.rows, self.total + other.total
        mine = self.of
        for name, taken in other.of.items():
            mine[name] = mine.get(name, 0.0) + taken

    def copy(self) -> Block:
        """Return the same rows, to join others with."""
        return Block(self.first, self.last, self.rows, self.total, dict(self.of))

    def share(self, name: str) -> float:
        """Return the share of a data set, 0 to 1."""
        return self.of.get(name, 0.0) / self.total if self.total > 0 else 0.0


@dataclass(slots=True)
class Taken:
    """Counts since a step, and variances of the shares of blocks (over resumes, too)."""

    blocks: list[Block] = field(default_factory=list)
    open: Block | None = None
    #: Data set -> variance of its share.
    spreads: dict[str, Spread] = field(default_factory=dict)

    def row(self, step: int, of: Mapping[str, float], total: float) -> bool:
        """Take a row and its total; return whether it ended a block."""
        block = self.open
        if block is None:
            block = self.open = Block(step, step)
        block.row(step, of, total)
        if block.rows < BLOCK_ROWS:
            return False
        self.open = None
        self.blocks.append(block)
        for name in block.of:
            if name not in self.spreads:
                self.spreads[name] = Spread()
        for name, spread in self.spreads.items():
            spread.add(block.share(name))
        if len(self.blocks) > MAX_BLOCKS:
            self._join()
        return True

    def restart(self) -> None:
        """Reset the counts. Variances of shares stay."""
        self.blocks, self.open = [], None
        for spread in self.spreads.values():
            spread.cut()

    def newest(self, blocks: int) -> Block:
        """Return the newest blocks, or all that there are, as one."""
        found = self.blocks[-1].copy()
        for block in self.blocks[-blocks:-1]:
            found.join(block)
        return found

    def due(self) -> list[Block]:
        """Return the newest 1, 2, 4 ... blocks as one each, those due after the newest one.

        A window is due once in half of its length: its cost is proportional to that.
        """
        sums, known, joined = [self.blocks[-1].copy()], len(self.blocks), 1
        while 2 * joined <= known and known % joined == 0:
            found = sums[-1].copy()
            for block in self.blocks[-2 * joined : -joined]:
                found.join(block)
            sums.append(found)
            joined *= 2
        return sums

    def since(self, step: int) -> Block:
        """Return the blocks that begin at or after ``step`` as one; empty for none."""
        found = Block(step, step)
        for block in self.blocks:
            if block.first >= step:
                found.join(block)
        return found

    def onset(self, name: str, declared: float, realised: float) -> int:
        """Return the first step of a ``realised`` share: the turn of the sum of excesses over half of the way."""
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
            first.join(second)
            joined.append(first)
        self.blocks = joined + self.blocks[half:]
