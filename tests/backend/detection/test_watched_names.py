"""Metrics are judged by what they are, whatever a framework, the job or nobody calls them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from stabilitybackend.detection.naming.watched_report import watched_of
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.watched import WatchedMetric
from support.job_frames import Job

STEPS = range(1, 400)


def noisy(level: float, sigma: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [level + rng.gauss(0, sigma) for _ in STEPS]


def spiking(seed: int = 3) -> list[float]:
    return [
        value + (4.0 if 220 <= step < 250 else 0.0) for step, value in zip(STEPS, noisy(2, 0.01, seed), strict=True)
    ]


def run_of(metrics: Mapping[str, Sequence[float]], frames: int = 1, **declared: object) -> RunState:
    """Return a run that declared names and logged these, in so many frames."""
    state, job = RunState("run", lambda: 5_000.0), Job()
    if declared:
        state.apply(job.event("names", **declared), replayed=False)
    for part in np.array_split(np.arange(len(STEPS)), frames):
        rows = {name: [values[i] for i in part] for name, values in metrics.items()}
        state.apply(job.rows([STEPS[i] for i in part], rows), replayed=False)
    return state


def found(state: RunState) -> list[tuple[str, str | None, int]]:
    return [(one.kind, one.metric, one.onset_step) for one in state.incidents.all() if one.severity != "info"]


def watched(state: RunState) -> dict[str, WatchedMetric]:
    return {one.metric: one for one in watched_of(state.judge.names, state.store.metrics()).watched}


@pytest.mark.parametrize("frames", [1, 7, 133])
def test_a_declared_loss_is_judged_under_its_own_name(frames: int) -> None:
    state = run_of({"objective": spiking(), "loss": noisy(5, 0.01, 4)}, frames, roles={"loss": "objective"})
    assert found(state) == [("spike", "objective", 220)]
    assert (state.view().loss_metric, watched(state)["objective"].why) == ("objective", "declared")
    assert watched_of(state.judge.names, state.store.metrics()).unwatched == ["loss"]


@pytest.mark.parametrize("frames", [1, 7, 133])
def test_a_likely_name_is_the_loss_when_its_values_agree(frames: int) -> None:
    state = run_of({"model/lm/xent": spiking(), "aux_loss": noisy(0.1, 0.01, 4)}, frames)
    assert found(state) == [("spike", "model/lm/xent", 220)]
    assert watched(state)["model/lm/xent"].why == "values"


def test_of_two_likely_losses_none_is_guessed_and_both_are_named() -> None:
    state = run_of({"encoder/xent": spiking(), "decoder/xent": spiking(5)})
    told = watched_of(state.judge.names, state.store.metrics())
    assert found(state) == []
    assert told.notes == [
        "No known loss; 'decoder/xent', 'encoder/xent' may be it. Say which with run.names(loss=...)."
    ]


def test_a_declared_name_that_never_comes_is_reported_and_known_names_are_watched() -> None:
    state = run_of({"loss": spiking()}, roles={"loss": "los"})
    assert found(state) == [("spike", "loss", 220)]
    assert state.view().unwatched.startswith(
        "run.names() names 'los' as loss, which none of the 399 rows since then has"
    )


def mixture(sets: Sequence[str], weights: Mapping[str, float], after: Mapping[str, float]) -> dict[str, list[float]]:
    rng = random.Random(9)
    counts: dict[str, list[float]] = {name: [] for name in sets}
    for step in STEPS:
        shares = after if step >= 300 else weights
        taken = rng.choices(list(sets), [shares[name] for name in sets], k=2_000)
        for name in sets:
            counts[name].append(float(taken.count(name)))
    return counts


@pytest.mark.parametrize("name", ["mixture/{}", "data/{}/share", "dataset_ratio_{}", "parts/{}"])
@pytest.mark.parametrize("times", [1, 100])
def test_shares_are_watched_whatever_their_names(name: str, times: int) -> None:
    counts = mixture(("web", "code"), {"web": 0.7, "code": 0.3}, {"web": 0.3, "code": 0.7})
    state = run_of({
        "loss": noisy(2, 0.01, 4),
        **{name.format(one): [times * value / 2_000 for value in values] for one, values in counts.items()},
    })  # fmt: skip
    assert [(kind, onset) for kind, _, onset in found(state)] == [("data_mix_drift", 300)]
    assert found(state)[0][1] in {name.format("web"), name.format("code")}


@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize("name", ["tokens/{}", "sampled/{}", "consumed_samples/{}"])
def test_counts_become_shares_whether_they_grow_or_not(name: str, grow: bool) -> None:
    counts = mixture(("web", "code"), {"web": 0.7, "code": 0.3}, {"web": 0.3, "code": 0.7})
    logged = {name.format(one): np.cumsum(v).tolist() if grow else v for one, v in counts.items()}
    state = run_of({"loss": noisy(2, 0.01, 4), **logged})
    assert [(kind, onset) for kind, _, onset in found(state)] == [("data_mix_drift", 300)]
    assert ("grow" in watched(state)[name.format("web")].text) == grow


@pytest.mark.parametrize("name", ["router/expert_share/{}", "time/{}", "acc/{}"])
def test_shares_of_other_things_are_no_mixture(name: str) -> None:
    counts = mixture(("web", "code"), {"web": 0.7, "code": 0.3}, {"web": 0.3, "code": 0.7})
    shares = {name.format(one): [value / 2_000 for value in values] for one, values in counts.items()}
    state = run_of({"loss": noisy(2, 0.01, 4), **shares})
    assert found(state) == []
    assert set(watched(state)) == {"loss"}
