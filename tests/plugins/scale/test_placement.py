"""Each run is followed by one worker, all have about as many, and few move when one comes or goes."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from stabilityplugins.scale.placement import MAX_SHARE, choices, placed

NAMES = st.lists(st.text("abcdef0123456789", min_size=1, max_size=6), max_size=60, unique=True)
WORKERS = st.lists(st.text("wxyz0123456789", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


@settings(deadline=None, max_examples=60)
@given(runs=NAMES, workers=WORKERS)
def test_each_run_has_one_worker_and_none_has_more_than_its_share_and_a_quarter(
    runs: list[str], workers: list[str]
) -> None:
    found = placed(runs, workers)
    assert found.keys() == set(runs)
    load = Counter(found.values())
    assert max(load.values(), default=0) <= math.ceil(MAX_SHARE * len(runs) / len(workers))
    assert load.keys() <= set(workers)


@settings(deadline=None, max_examples=30)
@given(runs=NAMES, workers=WORKERS, seed=st.integers(0, 99))
def test_the_order_in_which_they_are_seen_changes_nothing(runs: list[str], workers: list[str], seed: int) -> None:
    mixed_runs, mixed_workers = runs[:], workers[:]
    random.Random(seed).shuffle(mixed_runs)
    random.Random(seed + 1).shuffle(mixed_workers)
    assert placed(mixed_runs, mixed_workers) == placed(runs, workers)


def test_nobody_follows_a_run_where_no_worker_is_there() -> None:
    assert placed(["r"], []) == {}


def test_a_worker_that_goes_moves_its_own_runs_and_few_others() -> None:
    runs, workers = [f"run-{n}" for n in range(2_000)], [f"w{n}" for n in range(8)]
    before, after = placed(runs, workers), placed(runs, workers[:-1])
    moved = [run for run in runs if before[run] != after[run] and before[run] != "w7"]
    assert len(moved) < 0.15 * len(runs)


def test_a_run_goes_to_its_next_choice_when_its_worker_goes() -> None:
    workers = ["a", "b", "c"]
    first, second, _ = choices("run-1", workers)
    assert placed(["run-1"], workers) == {"run-1": first}
    assert placed(["run-1"], [one for one in workers if one != first]) == {"run-1": second}
