"""The mixture's curves are what was declared and what was taken, along the effective path, at any zoom."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.judging.detection.naming.mixture_curves import mixture_of_run, with_curves
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.mixture import MixtureCurve, MixtureCurves
from support.job_frames import Job


def counts(steps: range, web: float, seed: int = 5) -> dict[str, list[float]]:
    """Return counts of 1,000 samples a row, about ``web`` of them of one data set."""
    rng = random.Random(seed)
    taken = [sum(rng.random() < web for _ in range(1000)) for _ in steps]
    return {
        "loss": [2.0] * len(steps),
        "samples/web": [*map(float, taken)],
        "samples/code": [1000.0 - n for n in taken],
    }


def declared(web: float, steps: range, metrics: dict[str, list[float]]) -> tuple[RunState, Job]:
    state, job = RunState("run", lambda: 5_000.0), Job()
    shares = {"web": web, "code": 1 - web}
    state.apply(job.event("mixture", shares=shares, unit="samples"), replayed=False)
    state.apply(job.rows(steps, metrics), replayed=False)
    return state, job


def curves(state: RunState, buckets: int = 100, start: int | None = None, stop: int | None = None) -> MixtureCurves:
    found = with_curves(state.judge, mixture_of_run(state.judge), buckets, start, stop)().mixtures[0].curves
    assert found is not None
    return found


def web_of(found: MixtureCurves) -> MixtureCurve:
    return next(one for one in found.sets if one.dataset == "web")


def test_what_is_taken_as_declared_lies_in_the_band_and_a_stretch_of_another_mixture_does_not() -> None:
    steps = range(800)
    metrics, other = counts(steps, 0.7), counts(steps, 0.5, 6)
    for name in ("samples/web", "samples/code"):
        metrics[name][400:480] = other[name][400:480]
    found = curves(declared(0.7, steps, metrics)[0])
    web = web_of(found)
    outside = [
        first
        for first, share, low, high in zip(found.first, web.realised, web.low, web.high, strict=True)
        if low is not None and high is not None and not low <= float(share or 0) <= high
    ]
    assert (found.bucket_steps, outside) == (16, [400, 416, 432, 448, 464])


def test_a_schedule_is_drawn_as_steps_cut_where_it_changes() -> None:
    state, job = declared(0.7, range(100), counts(range(100), 0.7))
    state.apply(job.event("mixture", 205, shares={"web": 0.5, "code": 0.5}, unit="samples"), replayed=False)
    state.apply(job.rows(range(100, 400), counts(range(100, 400), 0.7)), replayed=False)
    found = curves(state)
    web = web_of(found).declared
    assert {share for first, share in zip(found.first, web, strict=True) if first < 205} == {0.7}
    assert {share for first, share in zip(found.first, web, strict=True) if first >= 205} == {0.5}
    assert max(last for last, share in zip(found.last, web, strict=True) if share == 0.7) <= 204


def test_discarded_steps_are_not_counted() -> None:
    state, job = declared(0.7, range(320), counts(range(320), 0.7))
    state.apply(job.rolled_back(159, "again"), replayed=False)
    state.apply(job.rows(range(160, 320), counts(range(160, 320), 0.2)), replayed=False)
    found = curves(state)
    shares = [float(share or 0) for share in web_of(found).realised]
    assert (found.first[0], sum(found.rows)) == (0, 320)
    assert min(shares[:10]) > 0.65
    assert max(shares[10:]) < 0.25
    (left,) = found.discarded
    assert (left.segment, left.first[0], left.last[-1]) == (0, 160, 319)
    assert min(float(share or 0) for share in left.realised["web"]) > 0.65


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_count_that_is_no_number_spoils_its_bucket_and_no_other(bad: float) -> None:
    metrics = counts(range(320), 0.7)
    metrics["samples/web"][100] = bad
    found = curves(declared(0.7, range(320), metrics)[0])
    assert [first for first, share in zip(found.first, web_of(found).realised, strict=True) if share == "NaN"] == [96]


def test_a_window_has_finer_buckets_and_a_few_rows_none() -> None:
    state, _ = declared(0.7, range(3_200), counts(range(3_200), 0.7))
    assert (curves(state, 20).bucket_steps, curves(state, 20, 0, 319).bucket_steps) == (256, 16)
    assert curves(state, 20, 10, 12).rows == []
