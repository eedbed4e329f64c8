"""Builders for tests of the archive, and the naive model that its answers are compared with.

The model goes row by row in plain Python and knows nothing of blocks of blocks, chunks or files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from stabilitybackend.storage.archive.aggregates import AGG, Aggs
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import Location
from stabilitybackend.storage.archive.part import Part, PartReader, write_part
from stabilitybackend.storage.archive.series import Rows, SeriesKey

__all__ = [
    "MAX_STEP",
    "assert_aggs",
    "keys",
    "levels",
    "make_part",
    "naive",
    "overlapping_rows",
    "rows",
    "same_rows",
    "spread",
    "steps",
    "table",
]

MAX_STEP = 2**53 - 1
#: NaN as other hardware or a careless cast makes it: the same fact in other bits, which have to come back.
_ODD_NAN = float(np.array([0xFFF8_0000_0000_0123], np.uint64).view(np.float64)[0])
#: Floats of any kind whose sums do not overflow.
_VALUES = st.one_of(
    st.floats(-1e300, 1e300),
    st.floats(-1, 1, width=16),  # many of the same
    st.sampled_from([0.0, -0.0, math.nan, _ODD_NAN, math.inf, -math.inf]),
)
levels = st.integers(0, 62)
keys = st.builds(
    SeriesKey,
    st.sampled_from(["loss", "loss/web", "grad_norm", "größe/😀"]),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from(["", "node-1"]),
    st.booleans(),
)


@st.composite
def steps(draw: st.DrawFn, max_size: int = 200) -> list[int]:
    """Rising steps: dense, every so many, scattered, or far apart up to the largest."""
    count = draw(st.integers(1, max_size))
    kind = draw(st.sampled_from(["dense", "stride", "clusters", "any"]))
    if kind == "dense":
        start = draw(st.integers(0, MAX_STEP - count))
        return list(range(start, start + count))
    if kind == "stride":
        stride = draw(st.integers(2, 5_000))
        start = draw(st.integers(0, 10**6))
        return list(range(start, start + count * stride, stride))
    if kind == "clusters":
        starts = draw(st.lists(st.integers(0, MAX_STEP - 60), min_size=1, max_size=4))
        return sorted({start + i for start in starts for i in range(0, 60, draw(st.integers(1, 7)))})
    return sorted(draw(st.sets(st.integers(0, MAX_STEP), min_size=1, max_size=60)))


@st.composite
def rows(draw: st.DrawFn, max_size: int = 200) -> Rows:
    """Rows with values of every kind; stretches of nothing but NaN among them, and several rows of one step."""
    found = draw(steps(max_size))
    if draw(st.booleans()):
        found = [step for step in found[: max_size // 4] for _ in range(draw(st.integers(1, 4)))] or found
    values = draw(st.lists(_VALUES, min_size=len(found), max_size=len(found)))
    if draw(st.booleans()):
        begin = draw(st.integers(0, len(found)))
        end = draw(st.integers(begin, len(found)))
        values[begin:end] = [math.nan] * (end - begin)
    shift = draw(st.floats(0, 1e9))
    return Rows(np.array(found, np.int64), np.array(values), shift + 0.25 * np.arange(len(found), dtype=np.float64))


#: Rows of a few hundred steps, so that two draws have steps in common.
overlapping_rows = st.dictionaries(
    st.integers(0, 300), st.tuples(_VALUES, st.floats(0, 1e9)), min_size=1, max_size=120
).map(lambda points: table(points))


def table(points: Mapping[int, tuple[float, float]]) -> Rows:
    """Return rows of step -> (value, time)."""
    ordered = sorted(points.items())
    return Rows(
        np.array([step for step, _ in ordered], np.int64),
        np.array([value for _, (value, _) in ordered], np.float64),
        np.array([time for _, (_, time) in ordered], np.float64),
    )


def naive(found: Rows, level: int, first: int = 0, last: int = MAX_STEP) -> list[dict[str, Any]]:
    """Return what AGG says of each block, row by row; the sum comes with the rounding that it may have."""
    blocks: dict[int, list[tuple[int, float, float]]] = {}
    for step, value, time in zip(found.steps.tolist(), found.values.tolist(), found.times.tolist(), strict=True):
        if first <= step <= last:
            blocks.setdefault(step >> level, []).append((step, value, time))
    return [_naive_block(block, inside) for block, inside in sorted(blocks.items())]


def _naive_block(block: int, inside: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    finite = [(step, value) for step, value, _ in inside if math.isfinite(value)]
    low = min(finite, key=lambda item: item[1], default=(-1, math.nan))
    high = max(finite, key=lambda item: item[1], default=(-1, math.nan))
    odd = {
        "nan": [step for step, value, _ in inside if math.isnan(value)],
        "pinf": [step for step, value, _ in inside if value == math.inf],
        "ninf": [step for step, value, _ in inside if value == -math.inf],
    }
    return {
        "block": block,
        "first_step": inside[0][0],
        "last_step": inside[-1][0],
        "first": inside[0][1],
        "last": inside[-1][1],
        "min": low[1],
        "min_step": low[0],
        "max": high[1],
        "max_step": high[0],
        "sum": (math.fsum(value for _, value in finite), math.fsum(abs(value) for _, value in finite)),
        "count": len(finite),
        **{kind: len(at) for kind, at in odd.items()},
        **{f"{kind}_step": at[0] if at else -1 for kind, at in odd.items()},
        "first_time": inside[0][2],
        "last_time": inside[-1][2],
    }


def assert_aggs(found: Aggs, expected: Sequence[Mapping[str, Any]]) -> None:
    """Fail unless every field of every block is the model's: to the bit, sums to rounding."""
    assert found.dtype == AGG
    assert found["block"].tolist() == [block["block"] for block in expected]
    for name in AGG.names or ():
        for got, block in zip(found[name].tolist(), expected, strict=True):
            want = block[name]
            if name == "sum":
                exact, size = want
                assert abs(got - exact) <= 1e-12 * size, (name, block["block"], got, exact)
            else:
                assert _same(got, want), (name, block["block"], got, want)


def same_rows(a: Rows, b: Rows) -> bool:
    """Return whether two sets of rows are the same to the bit, payloads of NaN and signs of zero included."""
    return all(
        np.array_equal(x.view(np.int64), y.view(np.int64))
        for x, y in ((a.steps, b.steps), (a.values, b.values), (a.times, b.times))
    )


def make_part(
    location: Location,
    series: Sequence[tuple[SeriesKey, Rows]],
    stem: str = "part",
    *,
    from_id: str = "0-0",
    to_id: str = "9-0",
    frames: Sequence[tuple[str, bytes]] = (("9-0", b"frame"),),
    state: bytes = b"state",
    cache_bytes: int = 2**26,
    cuts: Mapping[int, Collection[int]] = MappingProxyType({}),
) -> tuple[Part, PartReader]:
    """Write a part of the run "run" and return it with a reader whose cache is empty."""
    part = write_part(
        location, "run", stem, from_id=from_id, to_id=to_id, series=series, frames=frames, state=state, created=1.0,
        cuts=cuts,
    )  # fmt: skip
    return part, PartReader(location, "run", part, ByteCache(cache_bytes))


def _same(got: object, want: object) -> bool:
    if isinstance(got, float) and isinstance(want, float):
        return (math.isnan(got) and math.isnan(want)) or (
            got == want and math.copysign(1, got) == math.copysign(1, want)
        )
    return got == want


def spread(count: int, limit: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield ``count`` windows (first, last) within 0 to ``limit``, of every width."""
    random = np.random.default_rng(seed)
    for width in np.geomspace(1, limit, count).astype(int).tolist():
        first = int(random.integers(0, limit))
        yield first, first + width
