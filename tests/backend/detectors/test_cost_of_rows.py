"""The work of all detectors for a row is the same late in a run as early, whatever is logged."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

import pytest

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.registry import DETECTORS

ROWS = 512
NAMES = ("loss", "loss/web", "grad_norm", "lr", "data/loss/frac", "tokens_per_sec", "epoch")
SHAPES: dict[str, Callable[[int], float]] = {
    "constant": lambda step: 1.0,
    "zero": lambda step: 0.0,
    "two values": lambda step: 1.0 + step % 2,
    "stairs": lambda step: 3.0 - (step // 6 % 8) / 8,
    "missing": lambda step: math.nan if step % 3 else 1.0,
    "noise": lambda step: 2.5 + random.Random(step).gauss(0, 0.05),
    "spikes": lambda step: 9.0 if step % 40 == 39 else 2.5 + random.Random(step).gauss(0, 0.05),
}


class Counted(list[float]):
    """A column that counts how many of its values were read."""

    read = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        got = super().__getitem__(at)
        self.read += len(got) if isinstance(at, slice) else 1
        return got


def _work(bank: DetectorBank, first: int, shape: Callable[[int], float], rows: int = ROWS) -> int:
    """Give a block of rows, one of each step; return the calls and the reads that it took."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    steps = list(range(first, first + rows))
    columns = {name: Counted(map(shape, steps)) for name in NAMES if bank.wants(name)}
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        bank.feed_rows(NAMES, steps, [1e9 + step for step in steps], columns)
    finally:
        sys.setprofile(before)
    return calls + sum(column.read for column in columns.values())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_row_costs_no_more_after_many_like_it(shape: Callable[[int], float]) -> None:
    bank = DetectorBank(DETECTORS)
    works = [_work(bank, block * ROWS, shape) for block in range(12)]
    assert min(works[-3:]) <= 1.2 * max(works[2:5]), works


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_row_costs_no_more_in_a_block_of_four_times_as_many(shape: Callable[[int], float]) -> None:
    small, large = (
        [_work(bank, first, shape, rows) / rows for first in range(0, 4 * ROWS, rows)][-1]
        for bank, rows in ((DetectorBank(DETECTORS), ROWS // 2), (DetectorBank(DETECTORS), 2 * ROWS))
    )
    assert large <= 1.2 * small
