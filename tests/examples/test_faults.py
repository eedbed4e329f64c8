"""Each fault breaks what it says, from where it says, and is cured by what the README says."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from data import SOURCES, Batch, Mixture
from faults import FAULTS, BadData, Hang, LrWindow, Sampler, make_fault

_CODE = SOURCES.index("code")


def make_batch(number: int) -> Batch:
    return Batch(number, np.full((3, 9), 65), np.arange(3))


def make_mixture() -> Mixture:
    return Mixture([np.zeros(4_000, dtype=np.int64)] * 3, rows=16, context=16, seed=1)


def is_broken(batch: Batch) -> bool:
    return bool((batch.tokens[_CODE] != 65).any())


def test_bad_data_breaks_one_source_from_its_step_on() -> None:
    fault = BadData(step=100)

    broken = [is_broken(fault.batch(make_batch(step - 1))) for step in range(95, 400)]

    assert broken == [False] * 5 + [True] * 300


def test_bad_data_leaves_the_other_sources_alone() -> None:
    batch = BadData(step=100).batch(make_batch(99))

    assert (np.delete(batch.tokens, _CODE, axis=0) == 65).all()


def test_bad_data_comes_back_when_nothing_is_skipped() -> None:
    fault = BadData(step=100)
    fault.batch(make_batch(99))

    fault.restored(make_mixture())

    assert not is_broken(fault.batch(make_batch(80)))
    assert is_broken(fault.batch(make_batch(99)))


def test_bad_data_is_cured_by_a_rollback_that_skips_the_pocket() -> None:
    fault = BadData(step=100)
    fault.batch(make_batch(99))

    fault.restored(make_mixture())

    assert not any(is_broken(fault.batch(make_batch(99 + BadData.POCKET_BATCHES + i))) for i in range(300))


def test_the_lr_window_opens_and_closes() -> None:
    fault = LrWindow(step=100)

    factors = [fault.lr_factor(step) for step in (99, 100, 179, 180)]

    assert factors == [1.0, LrWindow.FACTOR, LrWindow.FACTOR, 1.0]


def test_the_sampler_fault_serves_mostly_images_after_a_restore() -> None:
    mixture = make_mixture()
    mixture.skip(100)
    healthy = np.bincount(mixture.next_batch(0, 1).source, minlength=3)

    Sampler(step=100, restarted=True).restored(mixture)

    drifted = np.bincount(mixture.next_batch(0, 1).source, minlength=3)
    assert healthy.tolist() == [6, 5, 5]
    assert drifted.tolist() == [14, 1, 1]


def test_the_sampler_fault_ends_the_job_once() -> None:
    first, second = Sampler(step=100, restarted=False), Sampler(step=100, restarted=True)

    assert [step for step in range(90, 110) if first.crashes(step)] == [100]
    assert not any(second.crashes(step) for step in range(90, 110))


def test_the_hang_stops_one_rank_of_the_first_start_only() -> None:
    stuck = Hang(step=100, rank=1, restarted=False)
    waits = threading.Thread(target=stuck.batch, args=(make_batch(99),), daemon=True)
    waits.start()

    waits.join(0.2)

    assert waits.is_alive()
    for whole in (Hang(step=100, rank=0, restarted=False), Hang(step=100, rank=1, restarted=True)):
        assert whole.batch(make_batch(99)).number == 99


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_acts_before_its_step(name: str) -> None:
    fault = make_fault(name, 100, rank=0, restarted=False)

    assert not any(is_broken(fault.batch(make_batch(step - 1))) for step in range(1, 100))
    assert {fault.lr_factor(step) for step in range(1, 100)} == {1.0}
    assert not any(fault.crashes(step) for step in range(1, 100))
