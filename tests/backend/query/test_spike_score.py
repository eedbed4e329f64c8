"""The SpikeScore is OLMo-core's, whatever the pieces that it is read in and whatever the job did between."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.schema.series import SpikeScore, SpikeScores
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.query import spike_score as module
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.spike_score import outliers, spike_scores
from stabilityclient.wire import Frame
from support.job_frames import Job


def plain(values: Sequence[float]) -> list[bool]:
    """Return which values are outliers, one after the other, from lists."""
    history: list[float] = []
    found = []
    for value in values:
        above = False
        if len(history) == 128:
            mean = math.fsum(history) / 128
            std = math.sqrt(math.fsum((one - mean) ** 2 for one in history) / 128)
            above = std >= 1e-10 and value > mean + 6.0 * std
        found.append(above)
        history = [*history, value][-128:]
    return found


def curve(points: int, seed: int, jumps: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    level = (2.0 + 3.0 * math.exp(-at / 500) for at in range(points))
    return [one * (1 + draw.gauss(0, 0.02)) + (draw.random() < jumps) * draw.expovariate(2.0) for one in level]


def scores(*frames: Frame, norm: str | None = "grad_norm") -> SpikeScores:
    store, fold = RunStore(), LineageFold()
    for frame in frames:
        for change in fold.apply(frame):
            if isinstance(change, Placed):
                store.add(Batch.of([change]))
    return spike_scores(store.view(), LineageView.of(fold), "loss", norm)


@pytest.mark.parametrize("points", [0, 1, 127, 128, 129, 400, 20_000])
def test_the_outliers_are_those_of_a_plain_reading_of_the_definition(points: int) -> None:
    values = curve(points, points)
    found = outliers(np.array(values))
    assert found.tolist() == plain(values)
    assert found.any() == (points == 20_000)


def test_a_loss_that_stands_still_has_no_outliers_by_rounding() -> None:
    assert not outliers(np.array([0.1] * 300 + [0.1 + 1e-12] * 3)).any()


@pytest.mark.parametrize("piece", [50, 131_072])
def test_each_metric_and_both_together_are_counted_by_steps(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_POINTS", piece)
    loss, norm = curve(12_000, 1), curve(12_000, 2)
    above = [set(np.flatnonzero(plain(values)).tolist()) for values in (loss, norm)]
    found = scores(Job().rows(range(12_000), {"loss": loss, "grad_norm": norm}))
    expected = [
        SpikeScore(
            name, 12_000, len(steps), len(steps) / 12_000, sum(step >= 2_000 for step in steps) / 10_000, max(steps)
        )
        for name, steps in (("loss", above[0]), ("grad_norm", above[1]), ("", above[0] | above[1]))
    ]
    assert found == SpikeScores(expected[:2], expected[2])


@pytest.mark.parametrize("piece", [50, 131_072])
def test_only_the_effective_points_count_and_what_is_not_finite_is_left_out(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_POINTS", piece)
    job, values = Job(), curve(1_000, 3)
    before, dead = values[:600], [50.0 + step for step in range(100)]
    after = [math.nan if at % 50 == 0 else value for at, value in enumerate(values[600:])]
    found = scores(
        job.rows(range(700), {"loss": before + dead}),
        job.rolled_back(599, "k"),
        job.rows(range(600, 1_000), {"loss": after}),
    )
    finite = [value for value in before + after if math.isfinite(value)]
    (one,) = found.metrics
    assert (one.steps, one.outliers) == (992, sum(plain(finite)))
    assert found.either == SpikeScore("", 992, one.outliers, one.outliers / 992, None, one.last_outlier)


def test_a_step_with_several_rows_counts_once_and_the_lowest_rank_counts() -> None:
    values = curve(900, 4)
    other = Job(rank=1, world_size=2).rows(range(300), {"loss": [9.0 + step for step in range(300)]})
    found = scores(other, Job(world_size=2).rows(np.repeat(np.arange(300), 3).tolist(), {"loss": values}))
    (one,) = found.metrics
    assert (one.steps, one.outliers) == (300, len({at // 3 for at, above in enumerate(plain(values)) if above}))


def test_steps_as_large_as_counted_tokens_are_read_in_few_pieces() -> None:
    found = scores(Job().rows([step * 4_000_000_000 for step in range(300)], {"loss": curve(300, 5)}))
    assert found.metrics[0].steps == 300


@pytest.mark.parametrize(("points", "share"), [(0, []), (100, [None])])
def test_a_young_run_has_no_score_yet(points: int, share: list[float | None]) -> None:
    found = scores(Job().rows(range(points), {"loss": curve(points, 6)}) if points else Job().event("start"))
    assert [one.share for one in found.metrics] == share
    assert (found.either is None) == (points == 0)
