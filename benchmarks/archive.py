"""Measures the archive alone: what a part costs to write, how large it is, how fast charts and zooms are read from it.

    python benchmarks/archive.py [--steps 833333] [--parts 10] [--folder DIR]

12 metrics of noisy curves, six of them from float32 as tensors give them. "Cold" is an empty cache (the files are in
the page cache of the system), "warm" is another window of what was read before, "again" the same window once more.
Each figure is the median of many.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from stabilitybackend.runs.archiving.archiver import compact
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import Location, open_location
from stabilitybackend.storage.archive.part import Part, PartReader, write_part
from stabilitybackend.storage.archive.series import Rows, SeriesKey

METRICS = 12
ROWS_PER_FRAME = 100
REPEATS = 15
CACHE_BYTES = 256 * 2**20
#: Ranks of the wide part, and rows of each of its series.
RANKS, WIDE_ROWS = 2_048, 140

Series = list[tuple[SeriesKey, Rows]]


def curves(steps: int, start: int = 0) -> Series:
    """Return 12 metrics of ``steps`` consecutive steps."""
    random = np.random.default_rng(start)
    times = np.round(1.75e9 + 0.45 * np.arange(start, start + steps) + 0.01 * random.random(steps), 6)
    found: Series = []
    for i in range(METRICS):
        values = 2 + 1e-3 * random.standard_normal(steps).cumsum() + 0.05 * random.standard_normal(steps)
        if i % 2:
            values = values.astype(np.float32).astype(np.float64)
        found.append((SeriesKey(f"metric/{i}", 0, 0, ""), Rows(np.arange(start, start + steps), values, times)))
    return found


def frames(series: Series) -> Iterator[tuple[str, bytes]]:
    """Yield messages with the same numbers, as large as the agents' are."""
    for i in range(0, len(series[0][1]), ROWS_PER_FRAME):
        columns = [series[0][1].times, *(rows.values for _, rows in series)]
        yield f"{1_750_000_000_000 + i}-0", b"".join(column[i : i + ROWS_PER_FRAME].tobytes() for column in columns)


def median_ms(action: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of ``action`` in milliseconds."""
    spans = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        spans.append(time.perf_counter() - begin)
    return 1e3 * sorted(spans)[len(spans) // 2]


def written(place: Location, stem: str, series: Series, from_id: str = "0-0", to_id: str = "1-0") -> tuple[Part, float]:
    """Write a part and return it with the CPU seconds that it took."""
    messages = list(frames(series)) if len(series) == METRICS else []
    begin = time.process_time()
    part = write_part(
        place, "bench", stem, from_id=from_id, to_id=to_id, series=series, frames=messages, state=b"", created=0.0
    )
    return part, time.process_time() - begin


def say(what: str, value: str) -> None:
    """Print one line of the table."""
    print(f"{what:<62} {value}", flush=True)


def one_part(place: Location, steps: int) -> None:
    """Measure one large part."""
    series = curves(steps)
    part, cpu = written(place, "big", series)
    say(f"write {part.rows:,} rows, CPU s (s per 10 M rows)", f"{cpu:.2f} ({cpu / part.rows * 1e7:.2f})")
    names = Files.of("bench", "big")
    sizes = {kind: place.size(getattr(names, kind)) / part.rows for kind in ("points", "levels", "frames", "series")}
    say("bytes a row", ", ".join(f"{kind} {size:.2f}" for kind, size in sizes.items()))
    key, middle, tenth = series[3][0], steps // 2, steps // 10
    full = max(8, (steps // 1_000).bit_length())
    reads: list[tuple[str, Callable[[PartReader, int], object]]] = [
        (f"whole run at level {full}", lambda reader, i: reader.aggregates(key, 0, steps + i, full)),
        (
            "the same, cut at both ends",
            lambda reader, i: reader.aggregates(key, tenth + i, 9 * tenth, full),
        ),
        (
            "a tenth at level 6 (from rows)",
            lambda reader, i: reader.aggregates(key, middle + i, middle + tenth, 6),
        ),
        ("10,000 raw steps", lambda reader, i: reader.rows(key, middle + i, middle + 10_000)),
        ("one metric, all rows", lambda reader, i: reader.rows(key)),
    ]
    for what, read in reads:
        say(f"{what}: cold, warm, again ms", three_times(place, [part], read))


def three_times(place: Location, parts: list[Part], read: Callable[[PartReader, int], object]) -> str:
    """Return what a read costs cold, warm (files known, another window each time) and asked again."""

    def ask(cache: ByteCache, i: int) -> None:
        for part in parts:
            read(PartReader(place, "bench", part, cache), i)

    windows = itertools.count(1)
    cache = ByteCache(CACHE_BYTES)
    cold = median_ms(lambda: ask(ByteCache(CACHE_BYTES), 0))
    ask(cache, 0)
    warm = median_ms(lambda: ask(cache, next(windows)))
    return f"{cold:.2f}, {warm:.2f}, {median_ms(lambda: ask(cache, 0)):.2f}"


def many_parts(place: Location, steps: int, count: int) -> None:
    """Measure a run in several parts, and their merge."""
    each = steps // count
    parts = [written(place, f"p{i}", curves(each, i * each), f"{i}-0", f"{i + 1}-0")[0] for i in range(count)]
    key, level = SeriesKey("metric/3", 0, 0, ""), max(8, (steps // 1_000).bit_length())

    say(
        f"whole run of {count} parts at level {level}: cold, warm, again ms",
        three_times(place, parts, lambda reader, i: reader.aggregates(key, 0, steps + i, level)),
    )
    cache = ByteCache(CACHE_BYTES)
    readers = [PartReader(place, "bench", part, cache) for part in parts]
    begin = time.process_time()
    merged = compact(place, "bench", readers, "merged", 0.0)
    say(f"merge them ({merged.rows:,} rows), CPU s", f"{time.process_time() - begin:.2f}")


def wide_part(place: Location) -> None:
    """Measure 12 metrics of 2,048 ranks."""
    random = np.random.default_rng(0)
    steps, times = np.arange(10**6, 10**6 + WIDE_ROWS), np.arange(WIDE_ROWS, dtype=np.float64)
    series = [
        (SeriesKey(f"metric/{m}", 0, rank, ""), Rows(steps, random.standard_normal(WIDE_ROWS), times))
        for m in range(METRICS)
        for rank in range(RANKS)
    ]
    part, cpu = written(place, "wide", series)
    say(f"write {len(series):,} series of {WIDE_ROWS} rows, CPU s", f"{cpu:.2f}")
    cold_ms = median_ms(lambda: PartReader(place, "bench", part, ByteCache(CACHE_BYTES)).keys(), 5)
    warm = PartReader(place, "bench", part, ByteCache(CACHE_BYTES))
    wanted = [key for key, _ in series if key.metric == "metric/3"]
    say("list its series: cold ms", f"{cold_ms:.1f}")
    windows = itertools.count(2**40)
    warm_ms = median_ms(lambda: [warm.aggregates(key, 0, next(windows), 8) for key in wanted], 3)
    say(f"one metric of {RANKS} ranks: warm ms", f"{warm_ms:.1f}")


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=833_333, help="steps of the run; 12 metrics each")
    options.add_argument("--parts", type=int, default=10, help="parts of the second run")
    options.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        place = open_location(folder)
        one_part(place, given.steps)
        many_parts(place, given.steps, given.parts)
        wide_part(place)
        say("peak memory of this program, MiB", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
