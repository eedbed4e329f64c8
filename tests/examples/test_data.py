"""The mixture hands out whole batches by number, in fixed shares, and comes back to any place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data import SHARES, SOURCES, VOCAB_SIZE, Mixture, is_pixel, load_sources

_CONTEXT = 16


def make_mixture(seed: int = 3, rows: int = 16) -> Mixture:
    rng = np.random.default_rng(0)
    streams = [rng.integers(0, 256, length) for length in (700, 3_000, 900)]  # short: epochs end within a test
    return Mixture(streams, rows=rows, context=_CONTEXT, seed=seed)


def draw(mixture: Mixture, batches: int) -> list[list[list[int]]]:
    return [mixture.next_batch(0, 1).tokens.tolist() for _ in range(batches)]


@pytest.mark.soak
def test_the_sources_are_real_and_stay_within_the_vocabulary(tokens: Path) -> None:
    digits, code, prose = load_sources(tokens)

    assert is_pixel(digits).sum() == 1797 * 64
    assert b"def " in bytes(code[:200_000].astype(np.uint8))
    assert len(code) > 1_000_000
    assert len(prose) > 200_000
    assert not is_pixel(code).any()
    assert max(stream.max() for stream in (digits, code, prose)) < VOCAB_SIZE


@pytest.mark.soak
def test_kept_tokens_are_those_that_were_read_and_half_a_file_is_made_anew(tokens: Path, tmp_path: Path) -> None:
    (kept,) = tokens.iterdir()
    half = tmp_path / kept.name
    half.write_bytes(kept.read_bytes()[:1_000_000])

    anew, again = load_sources(tmp_path), load_sources(tokens)

    assert all(np.array_equal(one, other) for one, other in zip(anew, again, strict=True))
    assert half.stat().st_size == kept.stat().st_size


def test_a_restored_mixture_goes_on_as_the_one_that_was_saved() -> None:
    mixture = make_mixture()
    draw(mixture, 30)
    state = mixture.state_dict()
    expected = draw(mixture, 30)

    other = make_mixture(seed=99)
    other.load_state_dict(state)

    assert draw(other, 30) == expected


def test_a_saved_state_does_not_change_when_the_mixture_goes_on() -> None:
    mixture = make_mixture()
    draw(mixture, 5)
    state = mixture.state_dict()
    expected = draw(mixture, 5)
    mixture.load_state_dict(state)
    draw(mixture, 5)

    mixture.load_state_dict(state)

    assert draw(mixture, 5) == expected


def test_skipping_batches_is_drawing_them() -> None:
    skipping, drawing = make_mixture(), make_mixture()
    draw(drawing, 40)

    skipping.skip(40)

    assert skipping.number == drawing.number == 40
    assert draw(skipping, 3) == draw(drawing, 3)


def test_a_range_is_left_out_when_it_comes_also_by_a_mixture_restored_before_it() -> None:
    leaving, drawing = make_mixture(), make_mixture()
    every = draw(drawing, 20)
    draw(leaving, 5)
    leaving.leave_out(3, 6)
    restored = make_mixture()
    restored.load_state_dict(leaving.state_dict())
    assert draw(leaving, 6) == draw(restored, 6) == every[5:7] + every[11:15]


def test_another_seed_gives_another_order() -> None:
    one, other = make_mixture(), make_mixture()
    other.reseed(4)

    assert draw(one, 1) != draw(other, 1)


def test_every_batch_holds_every_source_in_its_share() -> None:
    mixture = make_mixture()

    counts = [np.bincount(mixture.next_batch(0, 1).source, minlength=len(SOURCES)) / 16 for _ in range(50)]

    assert np.min(counts) > 0
    assert np.mean(counts, axis=0) == pytest.approx(SHARES, abs=0.01)


def test_the_ranks_share_a_batch_without_overlap() -> None:
    whole = make_mixture().next_batch(0, 1)

    parts = [make_mixture().next_batch(rank, 2) for rank in range(2)]

    assert sorted(row for part in parts for row in part.tokens.tolist()) == sorted(whole.tokens.tolist())
    assert {part.number for part in parts} == {0}
