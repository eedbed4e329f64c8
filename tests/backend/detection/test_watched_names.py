"""Metrics are judged by what they are, whatever a framework, the job or nobody calls them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from stabilitybackend.judging.detection.naming.watched_report import watched_of
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


@pytest.mark.parametrize("name", [
    "train_loss_epoch", "loss_total", "avg_loss", "loss_avg", "training_loss_avg", "ce", "elbo", "mse", "policy_loss",
    "actor_loss", "critic_loss", "loss_G", "l_simple", "bpb", "train/perplexity", "energy", "x", "model/q",
])  # fmt: skip
@pytest.mark.parametrize("frames", [1, 133])
def test_the_only_loss_is_known_by_its_values_whatever_its_name(name: str, frames: int) -> None:
    rng = random.Random(7)
    aside = {
        "accuracy": [0.2 + step / 1_000 + rng.gauss(0, 0.01) for step in STEPS],
        "lr": [1e-3 * (1 - step / 500) for step in STEPS],
        "tokens_seen": [512.0 * step for step in STEPS],
        "momentum": [0.9 + 0.05 * math.sin(step / 60) for step in STEPS],
        "epoch": [float(step // 100) for step in STEPS],
        "seed": [17.0 for _ in STEPS],
        "step_ms": noisy(20, 1, 5),
        "eval/score": noisy(1, 0.1, 6),
    }
    state = run_of({**aside, name: spiking()}, frames)
    assert [(one.kind, one.metric, one.onset_step) for one in state.incidents.all()][:1] == [("spike", name, 220)]
    assert (state.view().loss_metric, watched(state)[name].why) == (name, "values")
    assert state.view().unwatched == ""


def test_a_loss_and_its_perplexity_are_one_quantity_and_one_loss() -> None:
    losses = spiking()
    state = run_of({"ce": losses, "perplexity": [math.exp(one) for one in losses], "x": noisy(3, 0.2, 8)})
    assert found(state) == [("spike", "ce", 220)]


def test_a_part_of_the_objective_is_no_second_loss() -> None:
    state = run_of({"ce": spiking(), "aux_loss": noisy(0.1, 0.01, 4), "z_loss": noisy(0.2, 0.01, 5)})
    assert found(state) == [("spike", "ce", 220)]


def test_a_known_name_that_comes_later_takes_the_place_of_what_only_its_values_told() -> None:
    state, job = RunState("run", lambda: 5_000.0), Job()
    state.apply(job.rows(range(1, 100), {"q": noisy(2, 0.01, 3)[:99]}), replayed=False)
    assert state.view().loss_metric == "q"
    state.apply(job.rows(range(100, 399), {"q": noisy(2, 0.01, 5)[:299], "loss": spiking()[99:398]}), replayed=False)
    assert state.view().loss_metric == "loss"
    assert found(state) == [("spike", "loss", 220)]


def test_a_rank_without_a_known_name_is_judged_until_another_one_logs_a_loss() -> None:
    state, first, last = RunState("run", lambda: 5_000.0), Job(0, world_size=2), Job(1, world_size=2)
    for part in np.array_split(np.arange(len(STEPS)), 40):
        steps = [STEPS[i] for i in part]
        state.apply(first.rows(steps, {"pool": [noisy(1, 0.1, 2)[i] for i in part]}), replayed=False)
        state.apply(last.rows(steps, {"loss": [spiking()[i] for i in part]}), replayed=False)
    assert (state.judge.primary, found(state)) == (1, [("spike", "loss", 220)])


@pytest.mark.parametrize("values", [
    [float(step) for step in STEPS],
    [1e-3 * math.cos(step / 300) for step in STEPS],
    [1.0 + step % 2 for step in STEPS],
    [step / 400 + 0.01 * (step * 7 % 11) for step in STEPS],
], ids=["counter", "schedule", "flag", "accuracy"])  # fmt: skip
def test_what_is_like_no_loss_is_none_and_the_run_has_a_word_of_it(values: Sequence[float]) -> None:
    state = run_of({"q": values})
    assert state.view().loss_metric is None
    assert state.view().unwatched.startswith("Nothing watches the loss of this run")


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
