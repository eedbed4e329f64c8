"""A part answers as its rows would: any window, any level, any series, alone or merged with its neighbours."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.runs.archiving.archiver import compact
from stabilitybackend.storage.archive import aggregates, contents, location
from stabilitybackend.storage.archive import part as reading
from stabilitybackend.storage.archive.aggregates import Aggs, aggregate, row_counts
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.layout import Files
from stabilitybackend.storage.archive.location import LocalFolder
from stabilitybackend.storage.archive.part import Part, PartReader
from stabilitybackend.storage.archive.series import Extent, Rows, SeriesKey, join_rows
from support.points.archive_model import (
    MAX_STEP,
    assert_aggs,
    keys,
    levels,
    make_part,
    naive,
    overlapping_rows,
    rows,
    same_rows,
    spread,
    table,
)

LOSS = SeriesKey("loss", 0, 0, "")
GRAD = SeriesKey("grad_norm", 0, 0, "")
_series = st.dictionaries(keys, rows(), min_size=1, max_size=4)
_overlapping = st.dictionaries(st.sampled_from([LOSS, GRAD]), overlapping_rows, min_size=1)


@pytest.fixture
def place(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path)


@pytest.fixture(scope="module")
def small_chunks() -> Iterator[None]:
    """Chunks of a few rows and blocks of a few steps, so that a few hundred rows have many of both.

    Nothing is made durable either: these tests are about numbers, and fsync takes most of a small part's time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "POINTS_CHUNK", 16)
        patch.setattr(contents, "BATCH_ROWS", 48)
        patch.setattr(contents, "LEVELS_CHUNK", 8)
        patch.setattr(aggregates, "MIN_LEVEL", 2)
        patch.setattr(aggregates, "MIN_BLOCK_ROWS", 2)
        patch.setattr(location, "_sync", lambda path: None)
        patch.setattr(reading, "EDGE_ROWS", 4)
        patch.setattr(reading, "BULK_CHUNKS", 3)
        yield


def dense(count: int, start: int = 0, seed: int = 1) -> Rows:
    """Rows of every step from ``start`` on, a NaN here and an infinity there."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(count)
    values[random.integers(0, count, 1 + count // 5_000)] = np.nan
    values[random.integers(0, count, 1 + count // 20_000)] = np.inf
    return Rows(np.arange(start, start + count), values, 1e9 + np.cumsum(random.random(count)))


def near(found: Rows, data: st.DataObject) -> tuple[int, int]:
    """Draw a window whose ends lie at, beside or between the steps that are there."""
    ends = st.one_of(
        st.sampled_from(found.steps.tolist()).flatmap(lambda step: st.sampled_from([max(0, step - 1), step, step + 1])),
        st.integers(0, MAX_STEP),
    )
    first, last = data.draw(ends), data.draw(ends)
    return (first, last) if data.draw(st.integers(0, 9)) == 0 else (min(first, last), max(first, last))


def some_cuts(series: dict[SeriesKey, Rows]) -> st.SearchStrategy[dict[int, list[int]]]:
    """Draw where rollbacks left the segments: at steps that are there, and elsewhere."""
    steps = [-1, 0, *(step for found in series.values() for step in found.steps[:50].tolist())]
    segments = sorted({key.segment for key in series})
    return st.dictionaries(st.sampled_from(segments), st.lists(st.sampled_from(steps), max_size=3))


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=30, deadline=None)
@given(_series, st.data())
def test_any_window_at_any_level_is_what_its_rows_say(series: dict[SeriesKey, Rows], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _, reader = make_part(LocalFolder(Path(folder)), list(series.items()), cuts=data.draw(some_cuts(series)))

        for key, found in series.items():
            assert same_rows(reader.rows(key), found)
            for _ in range(4):
                (first, last), level = near(found, data), data.draw(levels)
                assert same_rows(reader.rows(key, first, last), found.between(first, last))
                assert_aggs(reader.aggregates(key, first, last, level), naive(found, level, first, last))


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=15, deadline=None)
@given(st.lists(st.one_of(_overlapping, _series), min_size=2, max_size=4), st.data())
def test_merged_parts_answer_as_all_their_rows_the_last_word_standing(
    parts: list[dict[SeriesKey, Rows]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = LocalFolder(Path(folder))
        readers = [
            make_part(place, list(series.items()), f"p{i}", from_id=f"{i}-0", to_id=f"{i + 1}-0")[1]
            for i, series in enumerate(parts)
        ]
        cuts = data.draw(some_cuts({key: rows for series in parts for key, rows in series.items()}))
        merged = compact(place, "run", readers, "merged", 2.0, cuts)
        reader = PartReader(place, "run", merged, ByteCache(2**26))

        names = list(dict.fromkeys(key for series in parts for key in series))
        assert list(reader.keys()) == names
        assert (merged.from_id, merged.to_id) == ("0-0", f"{len(parts)}-0")
        for key in names:
            found = join_rows([series[key] for series in parts if key in series])
            (first, last), level = near(found, data), data.draw(levels)
            assert same_rows(reader.rows(key), found)
            assert_aggs(reader.aggregates(key, first, last, level), naive(found, level, first, last))


@pytest.mark.soak
def test_windows_of_a_long_series_are_exact_with_chunks_of_the_real_size(place: LocalFolder) -> None:
    found = {LOSS: dense(90_000), GRAD: dense(40_000, start=7, seed=2)}
    part, reader = make_part(place, list(found.items()))

    for key, expected in found.items():
        assert same_rows(reader.rows(key), expected)
        for first, last in spread(3, 95_000, seed=4):
            inside = expected.between(first, last)
            assert same_rows(reader.rows(key, first, last), inside)
            for level in (5, 9, 11):
                same_aggs(reader.aggregates(key, first, last, level), aggregate(inside, level))
    assert part.rows == 130_000


def same_aggs(a: Aggs, b: Aggs) -> None:
    """Fail unless both are the same, sums to rounding. ``aggregate`` itself is held against the model elsewhere."""
    np.testing.assert_allclose(a["sum"], b["sum"], rtol=1e-12, atol=1e-9)
    without_sums = [aggs.copy() for aggs in (a, b)]
    for aggs in without_sums:
        aggs["sum"] = 0
    assert without_sums[0].tobytes() == without_sums[1].tobytes()


def test_a_curve_that_ends_where_a_rollback_left_its_segment_is_answered_without_reading_a_row(
    place: LocalFolder,
) -> None:
    part, reader = make_part(place, [(LOSS, dense(90_000))], cuts={LOSS.segment: [12_345, 70_001]})
    Path(place.path(Files.of("run", part.stem).points)).unlink()

    for first, last in ((0, 12_345), (12_346, 70_001), (70_002, MAX_STEP), (0, MAX_STEP)):
        inside = dense(90_000).between(first, last)
        same_aggs(reader.aggregates(LOSS, first, last, 11), aggregate(inside, 11))


def test_blocks_of_every_level_count_all_rows(place: LocalFolder) -> None:
    _, reader = make_part(place, [(LOSS, dense(70_000))])

    counted = [int(row_counts(reader.aggregates(LOSS, 0, MAX_STEP, level)).sum()) for level in range(4, 30, 3)]

    assert counted == [70_000] * 9


def test_series_are_listed_in_the_order_in_which_they_appeared(place: LocalFolder) -> None:
    agent = SeriesKey("loss", 0, None, "node-1")
    order = [SeriesKey("z", 1, 3, ""), LOSS, SeriesKey("z", 0, 3, ""), agent, SeriesKey("a", 0, 0, "", True)]
    _, reader = make_part(place, [(key, dense(3, start=i)) for i, key in enumerate(order)])

    assert list(reader.keys().items()) == [(key, Extent(i, i + 2, 3)) for i, key in enumerate(order)]


def test_a_series_that_comes_twice_is_one_with_the_rows_of_both(place: LocalFolder) -> None:
    early, late = table({1: (1.0, 1.0), 2: (2.0, 2.0)}), table({2: (20.0, 9.0), 3: (30.0, 10.0)})
    _, reader = make_part(place, [(LOSS, early), (GRAD, early), (LOSS, late)])

    assert same_rows(reader.rows(LOSS), join_rows([early, late]))


def test_the_rows_of_a_step_that_two_chunks_share_are_all_there(place: LocalFolder, small_chunks: None) -> None:
    steps = np.repeat(np.arange(200), 3)  # a chunk of 16 rows begins within most steps
    found = Rows(steps, np.arange(600.0), np.arange(600.0))
    _, reader = make_part(place, [(GRAD, found), (LOSS, found)])

    for step in range(200):
        assert reader.rows(LOSS, step, step).values.tolist() == [3.0 * step, 3.0 * step + 1, 3.0 * step + 2]
        assert row_counts(reader.aggregates(LOSS, step, step + 9, 3)).sum() == 3 * min(10, 200 - step)


def test_frames_and_state_come_back_byte_for_byte_also_after_a_merge(
    place: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "FRAMES_GROUP_BYTES", 10_000)
    random = np.random.default_rng(5)
    frames = [(f"{i}-{i % 3}", random.bytes(int(random.integers(0, 300)))) for i in range(500)]
    readers = [
        make_part(place, [], "a", to_id="5-0", frames=frames[:211], state=b"\x00old")[1],
        make_part(place, [], "b", from_id="5-0", to_id="6-0", frames=[], state=b"")[1],
        make_part(place, [], "c", from_id="6-0", to_id="7-0", frames=frames[211:], state=b"\xffnew\x00")[1],
    ]
    merged = compact(place, "run", readers, "merged", 2.0)
    reader = PartReader(place, "run", merged, ByteCache(2**20))

    assert [item for one in readers for item in one.frames()] == frames
    assert list(reader.frames()) == frames
    assert [one.state() for one in readers] == [b"\x00old", b"", b"\xffnew\x00"]
    assert reader.state() == b"\xffnew\x00"
    assert merged.frames == 500


def test_a_part_without_a_row_is_a_part(place: LocalFolder) -> None:
    part, reader = make_part(place, [(LOSS, Rows.EMPTY)], frames=[])

    assert (part.rows, part.first_step, part.last_step, reader.keys()) == (0, None, None, {})
    assert len(reader.rows(LOSS)) == len(reader.aggregates(LOSS, 0, MAX_STEP, 8)) == len(list(reader.frames())) == 0


def test_a_part_is_known_by_its_range_rows_and_bytes(place: LocalFolder) -> None:
    part, _ = make_part(place, [(LOSS, dense(40, start=3)), (GRAD, dense(5, start=90))], "s", to_id="4-2")

    assert part == Part(
        stem="s", from_id="0-0", to_id="4-2", rows=45, frames=1, series=2, created=1.0, first_step=3, last_step=94,
        bytes=sum(place.size(name) for name in Files.of("run", "s")), series_sum=part.series_sum,
        state_sum=part.state_sum, version=1,
    )  # fmt: skip
    assert Part.from_json(part.as_json()) == Part.from_json(part.as_json().encode()) == part


def test_the_points_file_needs_no_other_to_be_understood(place: LocalFolder) -> None:
    agent = SeriesKey("loss", 2, None, "node-1", stray=True)
    make_part(place, [(LOSS, table({1: (0.5, 10.0), 2: (1.5, 11.0)})), (agent, table({7: (2.5, 12.0)}))])

    frame = pl.read_parquet(place.path("run/part.points.parquet"))

    assert frame.rows() == [
        ("loss", 0, 0, "", False, 1, 10.0, 0.5),
        ("loss", 0, 0, "", False, 2, 11.0, 1.5),
        ("loss", 2, None, "node-1", True, 7, 12.0, 2.5),
    ]
    assert frame.columns == ["metric", "segment", "rank", "node", "stray", "step", "time", "value"]


def test_many_short_series_are_one_part_like_any_other(place: LocalFolder) -> None:
    wide = [(SeriesKey(f"m{m}", 0, rank, ""), dense(5, start=rank, seed=rank)) for rank in range(500) for m in range(4)]
    _, reader = make_part(place, wide)

    assert list(reader.keys()) == [key for key, _ in wide]
    assert all(same_rows(reader.rows(key), found) for key, found in wide[::37])


@pytest.mark.soak
def test_many_threads_read_the_same_part_at_once(place: LocalFolder) -> None:
    found = dense(70_000)
    _, reader = make_part(place, [(LOSS, found)], cache_bytes=2_000_000)
    wrong: list[int] = []

    def read(seed: int) -> None:
        wrong.extend(
            first
            for first, last in spread(3, 70_000, seed)
            if not same_rows(reader.rows(LOSS, first, last), found.between(first, last))
        )

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_parts_that_are_not_neighbours_are_not_merged(place: LocalFolder) -> None:
    readers = [make_part(place, [], f"p{i}", from_id=f"{i}-0", to_id=f"{i + 1}-0")[1] for i in range(3)]

    with pytest.raises(ValueError, match="expected each to begin where the last one ends"):
        compact(place, "run", [readers[0], readers[2]], "merged", 2.0)


@pytest.mark.parametrize("entry", ["", "{}", "[1]", '{"stem": "x"}', "null", b"\xff", '{"stem":5}'])
def test_an_entry_that_is_no_part_is_refused_with_what_it_was(entry: str | bytes) -> None:
    with pytest.raises(ArchiveError, match="expected the JSON of a part"):
        Part.from_json(entry)


def test_a_part_of_a_newer_server_is_refused_and_one_with_more_fields_is_not(place: LocalFolder) -> None:
    part, _ = make_part(place, [])

    assert Part.from_json(part.as_json().replace("{", '{"colour":"blue",', 1)) == part
    with pytest.raises(ArchiveError, match="reads up to 1") as refused:
        Part.from_json(part.as_json().replace('"version":1', '"version":2'))
    assert refused.value.code == "archive_newer"
