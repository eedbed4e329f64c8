"""Blocks of steps say what their rows say, however they are put together."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stabilitybackend.storage.archive.aggregates import (
    EMPTY_AGGS,
    MIN_BLOCK_ROWS,
    MIN_LEVEL,
    SHORT_ROWS,
    TILE_ROWS,
    aggregate,
    aggregate_short,
    base_level,
    regroup,
    row_counts,
)
from stabilitybackend.storage.archive.series import Rows, chain_rows, join_rows
from support.points.archive_model import MAX_STEP, assert_aggs, levels, naive, rows, same_rows, steps, table

_NEGATIVE_ZERO = table({5: (0.0, 1.0), 6: (-0.0, 2.0), 7: (0.0, 3.0)})
_NOTHING_FINITE = table({0: (math.nan, 1.0), 1: (math.inf, 2.0), 2: (-math.inf, 3.0), MAX_STEP: (math.nan, 4.0)})


@settings(max_examples=60)
@given(rows(), levels)
@example(_NEGATIVE_ZERO, 4)
@example(_NOTHING_FINITE, 1)
@example(_NOTHING_FINITE, 62)
def test_a_block_says_what_its_rows_say(found: Rows, level: int) -> None:
    assert_aggs(aggregate(found, level), naive(found, level))


@settings(max_examples=60)
@given(rows(), st.data())
def test_blocks_of_mixed_size_regroup_to_what_the_rows_say(found: Rows, data: st.DataObject) -> None:
    level = data.draw(levels)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(found)), max_size=6)) | {0, len(found)})
    pieces = [
        aggregate(Rows(found.steps[a:b], found.values[a:b], found.times[a:b]), data.draw(st.integers(0, level)))
        for a, b in pairwise(cuts)
    ]

    assert_aggs(regroup(np.concatenate([*pieces, EMPTY_AGGS]), level), naive(found, level))


@settings(max_examples=30)
@given(rows(), levels)
def test_every_row_is_counted_in_one_block(found: Rows, level: int) -> None:
    assert int(row_counts(aggregate(found, level)).sum()) == len(found)


@settings(max_examples=60)
@given(st.lists(rows().map(lambda found: found[: SHORT_ROWS - 1]).filter(len), min_size=1, max_size=8))
@example([_NEGATIVE_ZERO, _NOTHING_FINITE, _NEGATIVE_ZERO])
def test_many_short_series_at_once_are_aggregated_as_each_is_by_itself(many: list[Rows]) -> None:
    starts = np.cumsum([0, *map(len, many[:-1])])

    found, aggs = aggregate_short(chain_rows(many), starts)

    assert found.tolist() == [base_level(one.steps) for one in many]
    alone = [aggregate(one, base_level(one.steps)) for one in many]
    assert aggs.tobytes() == np.concatenate(alone).tobytes()


def test_rows_that_fill_many_tiles_are_aggregated_as_a_few_are() -> None:
    count = 3 * TILE_ROWS + 77
    random = np.random.default_rng(3)
    values = random.standard_normal(count)
    values[random.integers(0, count, 300)] = np.nan
    values[random.integers(0, count, 30)] = np.inf
    found = Rows(np.cumsum(random.integers(1, 4, count)), values, np.arange(count, dtype=np.float64))

    assert_aggs(aggregate(found, 9), naive(found, 9))
    assert_aggs(aggregate(found, 17), naive(found, 17))  # a block larger than a tile


def test_a_sum_beyond_the_largest_float_is_infinite_and_the_rest_holds() -> None:
    found = table(dict.fromkeys(range(8), (1.7e308, 0.0)))

    aggs = aggregate(found, 2)

    assert aggs["sum"].tolist() == [math.inf, math.inf]
    assert regroup(aggs, 3)["sum"].tolist() == [math.inf]
    assert regroup(aggs, 3)["max"].tolist() == [1.7e308]


def test_no_rows_have_no_blocks() -> None:
    assert len(aggregate(Rows.EMPTY, 8)) == len(regroup(EMPTY_AGGS, 8)) == 0


@given(steps(max_size=2_000))
def test_the_base_level_is_the_finest_at_which_a_block_holds_enough_rows(found: list[int]) -> None:
    def enough(level: int) -> bool:
        blocks = len({step >> level for step in found})
        return blocks == 1 or len(found) >= MIN_BLOCK_ROWS * blocks

    expected = next(level for level in range(MIN_LEVEL, 64) if enough(level))

    assert base_level(np.array(found, np.int64)) == expected


@given(st.lists(rows(max_size=20), max_size=5))
def test_of_joined_rows_every_one_is_there_and_those_of_a_step_in_their_order(parts: list[Rows]) -> None:
    every = chain_rows(parts)

    assert same_rows(join_rows(parts), every[np.argsort(every.steps, kind="stable")])


@given(rows(), st.integers(0, MAX_STEP), st.integers(0, MAX_STEP), st.data())
def test_between_gives_the_rows_from_first_to_last_inclusive(found: Rows, a: int, b: int, data: st.DataObject) -> None:
    first = data.draw(st.sampled_from([None, a, *found.steps[:3].tolist()]))
    last = data.draw(st.sampled_from([None, b, *found.steps[-3:].tolist()]))

    inside = [s for s in found.steps.tolist() if (first is None or s >= first) and (last is None or s <= last)]

    assert found.between(first, last).steps.tolist() == inside
