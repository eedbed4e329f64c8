"""What is gathered around an onset: the same from the same points, bounded, and only what was known then."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from stabilitybackend.judging.detection.evidence import EvidenceCollector
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.schema.incidents import as_json
from stabilitybackend.schema.json_data import NAME_CHARS
from stabilitybackend.storage.points.store import RunStore
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.saved_state import taken_over

ONSET = 200


class Run:
    """A run without detectors: lineage, points, incidents, and the evidence of a finding."""

    def __init__(self, frames: Iterable[Frame] = ()) -> None:
        self.fold, self.store, self.incidents = LineageFold(), RunStore(), IncidentBook("run")
        self.evidence = EvidenceCollector()
        for frame in frames:
            self.take(frame)

    def take(self, frame: Frame) -> None:
        for change in self.fold.apply(frame):
            if isinstance(change, Placed):
                self.store.add(Batch.of([change]))
            elif isinstance(change, Forked):
                self.evidence.forked(change.segment.fork_step)
            elif isinstance(change, LineageEvent) and change.type == "batch":
                self.evidence.batch(change.source.rank, change.step, change.data)

    def of(self, finding: Finding) -> Finding:
        return self.evidence.add(finding, 1_000.0, rank=0, store=self.store, fold=self.fold, incidents=self.incidents)


def finding(now: int = ONSET + 2, **changes: Any) -> Finding:
    facts: dict[str, Any] = {
        "detector": "spike", "key": f"spike:loss:{ONSET}", "kind": "spike", "state": "open", "severity": "warning",
        "title": "Loss spike", "text": "It rose.", "onset_step": ONSET, "step": ONSET + 1, "now_step": now,
        "metric": "loss", "evidence": {"peak": 5.0},
    }  # fmt: skip
    return Finding(**(facts | changes))


def noisy(level: float, steps: Sequence[int], jump: float = 2.0, seed: int = 3) -> list[float]:
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, 0.01)) * (jump if step >= ONSET else 1.0) for step in steps]


def spiked(steps: Sequence[int]) -> dict[str, list[float]]:
    return {
        "loss": noisy(2.0, steps),
        "loss/code": noisy(1.0, steps, jump=3.0, seed=4),
        "loss/prose": noisy(3.0, steps, jump=1.0, seed=5),
        "lr": [1e-3] * len(steps),
    }


def run_of(steps: Sequence[int], values: Mapping[str, Sequence[float]] | None = None) -> Run:
    return Run([Job().rows(steps, {name: list(v) for name, v in (values or spiked(steps)).items()})])


def test_a_finding_gets_its_window_who_moved_first_and_the_data_set() -> None:
    found = run_of(range(300)).of(finding())
    evidence = found.evidence
    assert (found.dataset, evidence["datasets"], evidence["peak"]) == ("code", ["code"], 5.0)
    assert [(move["metric"], move["onset_step"]) for move in evidence["moved_first"]] == [
        ("loss/code", ONSET),
        ("loss", ONSET),
    ]
    window = evidence["window"]
    assert window["steps"] == list(range(ONSET - 24, ONSET + 3))
    assert window["band"][0] < window["level"] < window["band"][1]
    assert window["level"] == pytest.approx(2.0, rel=0.01)


def test_the_rise_of_the_metric_itself_is_the_one_of_its_detector() -> None:
    said = {"level_before": 2.0, "peak": 5.0, "rise_percent": 150.0}
    moves = run_of(range(300)).of(finding(evidence=said)).evidence["moved_first"]
    own = next(move for move in moves if move["metric"] == "loss")
    assert (own["from"], own["to"], own["rise_percent"]) == (2.0, 5.0, 150.0)
    assert next(move for move in moves if move["metric"] == "loss/code")["rise_percent"] != 150.0


def test_the_level_of_the_small_chart_is_the_one_of_the_sentence() -> None:
    window = run_of(range(300)).of(finding(evidence={"level_before": 2.125, "peak": 5.0})).evidence["window"]
    assert window["level"] == 2.125
    assert sum(window["band"]) / 2 == pytest.approx(2.125)


def test_a_climb_that_begins_with_a_high_point_still_may_have_begun_where_the_gradient_norm_rose() -> None:
    steps, rose, seen = range(ONSET + 21), ONSET - 80, ONSET + 20
    loss = [2.0 + 0.01 * (step % 5) + 0.01 * max(0, step - ONSET) for step in steps]
    loss[ONSET] += 0.05
    norm = [1.0 + 0.01 * (step % 3) + 0.01 * max(0, step - rose) for step in steps]
    climb = finding(seen, kind="divergence", step=seen, evidence={"level_before": 2.0, "sigma": 0.005})
    band = run_of(steps, {"loss": loss, "grad_norm": norm}).of(climb).evidence["onset_band"]
    assert rose - 8 <= band[0] <= rose + 24


def test_what_came_after_the_finding_is_not_read_however_the_points_were_cut_into_frames() -> None:
    job, values = Job(), spiked(range(400))
    whole = run_of(range(400)).of(finding())
    row_by_row = Run()
    for step in range(ONSET + 3):
        row_by_row.take(job.rows([step], {name: [column[step]] for name, column in values.items()}))
    assert row_by_row.of(finding()) == whole


def test_a_data_set_that_the_detector_names_stays_unless_the_curves_of_a_whole_loss_tell_better() -> None:
    run = run_of(range(300))
    assert run.of(finding(metric="loss/code", dataset="code")).dataset == "code"
    assert run.of(finding(metric="loss/prose", dataset="prose")).dataset == "prose"
    assert run.of(finding(metric="loss", dataset="prose")).dataset == "code"
    calm = run_of(range(300), {"loss": noisy(2.0, range(300))})
    assert calm.of(finding(dataset="prose")).dataset == "prose"


def test_the_first_data_set_to_rise_is_not_blamed_where_the_learning_rate_jumped() -> None:
    steps = range(300)
    run = run_of(steps, spiked(steps) | {"lr": noisy(1e-3, steps, jump=50.0)})
    assert run.of(finding(metric="loss/code", dataset="code")).dataset is None


@pytest.mark.parametrize("every", [10, 100, 1_000])
def test_a_run_that_logs_rarely_has_a_window_of_as_many_points(every: int) -> None:
    steps = range(0, 300 * every, every)
    values = {"loss": noisy(2.0, [step // every for step in steps])}
    found = run_of(steps, values).of(finding(ONSET * every + 2 * every, onset_step=ONSET * every))
    assert found.evidence["window"]["steps"] == list(steps[ONSET - 24 : ONSET + 3])


def test_a_long_event_is_drawn_with_its_worst_and_its_nan_in_a_bounded_window() -> None:
    steps = range(5_000)
    loss = noisy(2.0, steps)
    loss[3_333], loss[4_444] = 77.0, math.nan
    evidence = run_of(steps, {"loss": loss}).of(finding(4_999)).evidence
    assert len(evidence["window"]["steps"]) <= 60
    assert {3_333, 4_444, 4_999} <= set(evidence["window"]["steps"])


def test_of_a_very_long_event_the_beginning_the_peak_and_the_end_are_drawn() -> None:
    steps = range(30_000)
    loss = noisy(2.0, steps)
    loss[20_000] = 99.0
    window = run_of(steps, {"loss": loss}).of(finding(29_999, peak_step=20_000)).evidence["window"]
    assert len(window["steps"]) <= 60
    assert {ONSET, 20_000, 29_999} <= set(window["steps"])
    assert window["steps"] == sorted(window["steps"])


def test_what_is_gathered_passes_the_bounds_of_an_incident_unharmed() -> None:
    steps = range(1_200)
    values = spiked(steps)
    values["loss"][ONSET + 5] = math.inf
    found = run_of(steps, values).of(finding(1_100))
    (incident,) = IncidentBook("run").apply(found, segment=0, time=1.0, checkpoints=UsableOf([]))
    window = incident.evidence["window"]
    assert window["steps"] == found.evidence["window"]["steps"]
    assert "Infinity" in window["values"]
    assert incident.evidence["moved_first"][0]["dataset"] == "code"
    assert len(json.dumps(as_json(incident), allow_nan=False)) < 8_000


def test_forks_checkpoints_and_jumps_near_the_onset_are_told_and_far_ones_are_not() -> None:
    job = Job()
    run = Run([job.rows(range(100), {"loss": noisy(2.0, range(100))}), job.event("checkpoint", 90, path="c/90")])
    run.take(job.rows(range(100, 210), {"loss": noisy(2.0, range(100, 210)), "lr": [1e-3] * 110}))
    run.take(job.event("checkpoint", 195, path="c/195"))
    run.take(job.rolled_back(196, "d-1"))
    steps = range(197, 220)
    run.take(job.rows(steps, {"loss": noisy(2.0, steps), "lr": [1e-3 if step < 199 else 5e-3 for step in steps]}))
    nearby = run.of(finding()).evidence["nearby"]
    assert [(fact["what"], fact["step"], fact["distance"]) for fact in nearby] == [
        ("lr", 199, -1),
        ("fork", 197, -3),
        ("checkpoint", 195, -5),
    ]
    assert nearby[0]["text"] == "the learning rate went from 0.001 to 0.005"


def test_a_warm_up_is_no_jump() -> None:
    steps = range(300)
    found = run_of(steps, {"loss": noisy(2.0, steps), "lr": [1e-6 * 1.2**step for step in steps]}).of(finding())
    assert "nearby" not in found.evidence


def test_an_alert_of_the_job_and_a_fault_of_a_machine_near_the_onset_are_told() -> None:
    run = run_of(range(300))
    for kind, onset, time in (
        ("alert", ONSET - 4, 1.0),
        ("gpu_fault", 7, 990.0),
        ("hang", 7, 1.0),
        ("spike", 198, 1.0),
    ):
        other = finding(key=f"{kind}:{onset}", kind=kind, onset_step=onset, title=f"A {kind}")
        run.incidents.apply(other, segment=0, time=time, checkpoints=UsableOf([]))
    nearby = run.of(finding()).evidence["nearby"]
    assert [(fact["what"], fact["text"]) for fact in nearby] == [("alert", "A alert"), ("gpu", "A gpu_fault")]


def test_the_batches_around_the_onset_are_told_and_a_rollback_forgets_the_dead_ones() -> None:
    job = Job()
    run = run_of(range(300))
    for step in range(150, 203):
        run.take(job.event("batch", step, fingerprint=f"f{step}"))
    batches = run.of(finding()).evidence["batches"]
    assert [entry["step"] for entry in batches] == list(range(196, 203))
    assert batches[0]["fingerprint"] == "f196"
    run.evidence.forked(198)
    assert [entry["step"] for entry in run.of(finding()).evidence["batches"]] == [196, 197, 198]


def test_batches_are_those_of_the_lowest_rank_bounded_and_kept_over_a_restart() -> None:
    evidence = EvidenceCollector()
    evidence.batch(1, 5, {"fingerprint": "other"})
    for step in range(1_000):
        evidence.batch(0, step, {"fingerprint": "x" * 1_000})
    evidence.batch(1, 1_000, {"fingerprint": "other"})
    for kept in (evidence, taken_over(evidence, EvidenceCollector())):
        [batches, rank] = kept.saved_values()
        assert (rank, [step for step, _ in batches]) == (0, list(range(744, 1_000)))
        assert {len(mark) for _, mark in batches} == {NAME_CHARS}


def test_quiet_gradients_before_a_burst_and_growing_logits_are_told() -> None:
    steps = range(230)
    norms = [1.0 if step < 172 else 0.3 if step < ONSET else 4.0 for step in steps]
    values = {"loss": noisy(2.0, steps), "grad_norm": norms, "max_logit": [10.0 + step / 4 for step in steps]}
    evidence = run_of(steps, values).of(finding(220)).evidence
    assert evidence["gradients"] == {"metric": "grad_norm", "quiet_ratio": 0.3, "burst_ratio": pytest.approx(13.3333)}
    assert [entry["metric"] for entry in evidence["growing"]] == ["max_logit"]


def grown(values: Sequence[float]) -> list[dict[str, Any]]:
    steps = range(len(values))
    onset = len(values) - 2
    run = run_of(steps, {"loss": noisy(2.0, steps), "attn/max_logit": values})
    found = run.of(finding(onset + 1, onset_step=onset, step=onset)).evidence.get("growing", [])
    return [{name: entry[name] for name in ("metric", "since_step")} for entry in found]


def test_logits_that_grow_for_the_whole_run_are_told_though_hardly_at_all_in_the_points_around_the_onset() -> None:
    draw = random.Random(1)
    values = [10.0 + 30.0 * step / 4_000 + draw.gauss(0.0, 1.0) for step in range(4_000)]
    assert grown(values) == [{"metric": "attn/max_logit", "since_step": 448}]


@pytest.mark.parametrize(
    "shape",
    [
        lambda at: 20.0,
        lambda at: 20.0 if at > 0.05 else 2.0,  # from the first weights up to where they stay
        lambda at: 10.0 + 30.0 * min(at, 0.5),  # grew, and does no more
        lambda at: 10.0 + 30.0 * at if at < 0.9 else 12.0,  # a rollback or a norm that was switched on
        lambda at: 5.0 * math.log(100.0 + 40_000 * at),
        lambda at: 40.0 - 30.0 * at,
    ],
)
def test_logits_that_stay_or_only_settle_are_not_told(shape: Callable[[float], float]) -> None:
    draw = random.Random(2)
    values = [shape(step / 4_000) * (1.0 + draw.gauss(0.0, 0.03)) for step in range(4_000)]
    assert grown(values) == []


@pytest.mark.parametrize("loud", [False, True])
def test_a_data_set_carries_a_gradient_that_is_not_finite_only_where_the_whole_loss_shows_it(loud: bool) -> None:
    steps = range(300)
    norm = [math.inf if step >= ONSET else 1.0 + 0.01 * (step % 3) for step in steps]
    values = spiked(steps) | {"grad_norm": norm}
    if not loud:
        values["loss"] = noisy(2.0, steps, jump=1.0)
    found = run_of(steps, values).of(finding(kind="nonfinite", metric="grad_norm"))
    assert found.dataset == ("code" if loud else None)
    assert ("Caused by data set code" in found.text) is loud


@pytest.mark.parametrize("metric", [None, "never_logged"])
def test_without_points_there_is_nothing_to_gather(metric: str | None) -> None:
    assert run_of(range(300), {"val": [1.0] * 300}).of(finding(metric=metric)).evidence == {"peak": 5.0}


def test_an_incident_at_the_first_steps_has_what_there_is() -> None:
    found = run_of(range(5), {"loss": [math.nan] * 5}).of(finding(2, onset_step=0, kind="nonfinite"))
    assert found.evidence["window"]["steps"] == [0, 1, 2]
    assert "level" not in found.evidence["window"]
