"""What a detector remembers of a whole run: bounded, cut by a rollback, kept over a restart, in no snapshot."""

from __future__ import annotations

import random

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Row
from stabilitybackend.judging.detectors.engine.long_past import MAX_PAST_BLOCKS, PAST_BLOCK, LongPast
from stabilitybackend.judging.detectors.repeat_data import RepeatDataDetector


def _fed(bank: DetectorBank, first: int, last: int) -> DetectorBank:
    for step in range(first, last):
        bank.feed_row(Row(step, 1e9 + step, {"loss": 2.5 + random.Random(step).gauss(0, 0.05)}))
    return bank


def _bank() -> DetectorBank:
    return DetectorBank({"repeat_data": RepeatDataDetector})


def _past(bank: DetectorBank) -> tuple[bytes, list[int]]:
    past = bank.detectors["repeat_data"].past
    return bytes(past.data), past.steps


def test_after_a_rollback_the_past_is_that_of_a_run_that_never_saw_what_was_discarded() -> None:
    bank = _fed(_bank(), 0, 3_000)
    after = bank.rewind(1_500)
    bank = _fed(bank, after + 1, 2_000)
    assert _past(bank) == _past(_fed(_bank(), 0, 2_000))


def test_the_past_is_taken_over_by_the_next_server() -> None:
    bank, another = _fed(_bank(), 0, 2_000), _bank()
    unfit = another.restore("bank", {part.name: part for part in bank.saved("bank")})
    assert (unfit, _past(_fed(another, 2_000, 2_400))) == ({}, _past(_fed(bank, 2_000, 2_400)))


def test_a_snapshot_does_not_grow_with_the_past() -> None:
    sizes = [len(_fed(_bank(), 0, points).state()["repeat_data"]) for points in (2_000, 6_000)]
    assert sizes[1] - sizes[0] < 100


def test_the_past_is_bounded_and_forgets_the_oldest() -> None:
    past = LongPast()
    for number in range(MAX_PAST_BLOCKS + 1):
        past.add(number, number * PAST_BLOCK, bytes(PAST_BLOCK))
    kept = MAX_PAST_BLOCKS // 2 + 1
    assert (len(past.steps), len(past.data), past.steps[-1]) == (kept, kept * PAST_BLOCK, MAX_PAST_BLOCKS * PAST_BLOCK)
    past.cut(10)
    past.add(10, 160, bytes(PAST_BLOCK))
    assert (past.steps, past.dropped) == ([160], 10)
