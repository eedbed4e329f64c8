"""Declared shares of data sets are compared with what was taken: off for long is an incident, chance is none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from support.job_frames import Job

TARGET = {"web": 0.7, "code": 0.2, "math": 0.1}
#: The same with math as rare as a thousandth.
RARE = {"web": 0.8, "code": 0.199, "math": 0.001}


def taken(
    seed: int, rows: int, shares: Mapping[str, float], *, batch: int = 256, document: int = 1
) -> list[list[float]]:
    """Return counts by data set, a list for each, drawn in documents of so many rows' worth of one set."""
    rng, names = random.Random(seed), list(shares)
    counts: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rows):
        drawn = rng.choices(names, list(shares.values()), k=max(1, batch // document))
        for name in names:
            counts[name].append(float(drawn.count(name) * document))
    return list(counts.values())


def metrics(prefix: str, counts: list[list[float]]) -> dict[str, list[float]]:
    """Return what a job logs, and a loss."""
    whole = [sum(row) for row in zip(*counts, strict=True)]
    if prefix == "ratio":
        counts = [[one / total for one, total in zip(column, whole, strict=True)] for column in counts]
    if prefix == "seen_tokens":
        prefix, counts = "tokens", [[sum(column[: i + 1]) for i in range(len(column))] for column in counts]
    return {
        "loss": [2.0 + 0.01 * (i % 7) for i in range(len(whole))],
        **{f"{prefix}/{name}": column for name, column in zip(TARGET, counts, strict=True)},
    }


def run_of(logged: dict[str, list[float]], shares: Mapping[str, float] = TARGET, **declared: Any) -> RunState:
    state, job = RunState("run", lambda: 5_000.0), Job()
    state.apply(job.event("mixture", declared.pop("step", None), shares=dict(shares), unit="tokens"), replayed=False)
    state.apply(job.rows(range(1, len(logged["loss"]) + 1), logged), replayed=False)
    return state


def found(state: RunState) -> list[Incident]:
    return [one for one in state.incidents.all() if one.kind == "data_mix_drift"]


@pytest.mark.parametrize("prefix", ["tokens", "seen_tokens", "ratio"])
def test_a_mixture_that_leaves_its_declared_shares_is_one_incident_with_what_is_missing(prefix: str) -> None:
    off = {"web": 0.5, "code": 0.4, "math": 0.1}
    before, after = taken(1, 300, TARGET), taken(2, 200, off)
    state = run_of(metrics(prefix, [a + b for a, b in zip(before, after, strict=True)]))
    (one,) = found(state)
    assert (one.dataset, abs(one.onset_step - 301) <= 16, one.step - one.onset_step <= 40) == ("code", True, True)
    sets = {entry["dataset"]: entry for entry in one.evidence["sets"]}
    assert {name: entry["declared"] for name, entry in sets.items()} == TARGET
    assert sets["code"]["realised"] == pytest.approx(0.4, abs=0.04)
    rows = 1 if prefix == "ratio" else 256
    assert sets["code"]["off"] == pytest.approx(0.2 * rows * (one.now_step - 300), rel=0.35)


def test_a_mixture_that_was_never_as_declared_is_found_from_the_first_row_on() -> None:
    (one,) = found(run_of(metrics("tokens", taken(3, 300, {"web": 0.6, "code": 0.3, "math": 0.1}))))
    assert one.onset_step <= 16


def test_a_rare_data_set_that_ran_dry_is_found() -> None:
    before, after = (
        taken(4, 400, RARE, batch=4_096),
        taken(5, 400, {"web": 0.801, "code": 0.199, "math": 0.0}, batch=4_096),
    )
    (one,) = found(run_of(metrics("tokens", [a + b for a, b in zip(before, after, strict=True)]), RARE))
    assert (one.dataset, abs(one.onset_step - 401) <= 32) == ("math", True)


@pytest.mark.parametrize("seed", [0, *(pytest.param(more, marks=pytest.mark.soak) for more in (1, 2))])
@pytest.mark.parametrize(
    ("shares", "batch", "document"),
    [(TARGET, 256, 16), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((TARGET, 8, 1), (RARE, 512, 1)))],
)
def test_chance_is_no_incident(seed: int, shares: Mapping[str, float], batch: int, document: int) -> None:
    counts = taken(100 + seed, 3_000, shares, batch=batch, document=document)
    assert found(run_of(metrics("tokens", counts), shares)) == []


def test_a_planned_change_is_the_new_target_from_its_step_on() -> None:
    later = {"web": 0.4, "code": 0.5, "math": 0.1}
    counts = [a + b for a, b in zip(taken(6, 300, TARGET), taken(7, 300, later), strict=True)]
    state, job = RunState("run", lambda: 5_000.0), Job()
    state.apply(job.event("mixture", None, shares=TARGET, unit="tokens"), replayed=False)
    state.apply(job.event("mixture", 301, shares=later, unit="tokens"), replayed=False)
    state.apply(job.rows(range(1, 601), metrics("tokens", counts)), replayed=False)
    assert found(state) == []


def test_a_resume_that_serves_one_set_too_often_names_it_and_leads_the_advice_over_the_loss_that_is_low() -> None:
    usual, wrong = {"web": 5.0, "code": 6.0, "math": 5.0}, {"web": 1.0, "code": 14.0, "math": 1.0}
    shares = {name: rows / 16 for name, rows in usual.items()}
    state, job, again = RunState("run", lambda: 5_000.0), Job(), Job(start=2)
    state.apply(job.event("mixture", None, shares=shares, unit="samples"), replayed=False)
    state.apply(job.rows(range(1, 221), strict(usual, 220, loss=2.3)), replayed=False)
    state.apply(again.event("mixture", None, shares=shares, unit="samples"), replayed=False)
    state.apply(again.rows(range(201, 241), strict(wrong, 40, loss=1.8)), replayed=False)
    (one,) = (one for one in state.incidents.all() if one.severity != "info" and one.state == "open")
    assert (one.kind, one.dataset, one.onset_step, one.step) == ("data_mix_drift", "code", 201, 216)
    assert "in exchange for web (6.3 %, declared 31.3 %) and math (6.3 %, declared 31.3 %)" in one.text
    (low,) = (one for one in state.incidents.all() if one.kind != "data_mix_drift")
    assert (low.kind, low.severity) == ("resume_artifact", "info")
    assert low.title == "samples/code differs after the resume at step 201"


def strict(rows: Mapping[str, float], steps: int, *, loss: float) -> dict[str, list[float]]:
    """Return what a sampler logs that takes just so many rows of each set at each step."""
    noise = random.Random(steps)
    logged = {f"samples/{name}": [count] * steps for name, count in rows.items()}
    return {"loss": [loss + noise.gauss(0, 0.03) for _ in range(steps)], **logged}


def test_a_resume_that_forgot_the_mixture_is_named() -> None:
    state, job, again = RunState("run", lambda: 5_000.0), Job(), Job(start=2)
    state.apply(job.event("mixture", None, shares=TARGET, unit="tokens"), replayed=False)
    state.apply(job.rows(range(1, 401), metrics("tokens", taken(8, 400, TARGET))), replayed=False)
    state.apply(again.event("mixture", None, shares=TARGET, unit="tokens"), replayed=False)
    flat = {"web": 0.34, "code": 0.33, "math": 0.33}
    state.apply(again.rows(range(301, 500), metrics("tokens", taken(9, 199, flat))), replayed=False)
    (one,) = [one for one in found(state) if one.severity != "info"]
    assert (one.onset_step, one.evidence["after_fork"]) == (301, 301)
    assert "the run went back to step 300" in one.text
