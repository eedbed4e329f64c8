"""The summary that is kept row by row equals one that is made anew from all rows, and costs nothing when asked for."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.changes import Forked
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.lineage.lineage import Lineage
from stabilitybackend.storage.archive.series import Rows, SeriesKey
from stabilitybackend.storage.points.points import Points
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.points.summary import MAX_LATEST, RunSummary
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell
from support.saved_state import taken_over


class _CountedStore(RunStore):
    """A store that counts how often rows are read."""

    reads = 0

    def rows(self, key: SeriesKey, first: int | None = None, last: int | None = None) -> Rows:
        self.reads += 1
        return super().rows(key, first, last)


class _Run:
    def __init__(self) -> None:
        self.lineage, points = Lineage(), Points()
        self.fold, self.store = self.lineage.fold, _CountedStore()
        points.store = self.store
        self.summary = RunSummary(self.lineage, points)
        self.placed: list[Placed] = []

    def feed(self, *frames: Frame) -> _Run:
        for frame in frames:
            for change in self.fold.apply(frame):
                if isinstance(change, Placed):
                    self.store.add(Batch.of([change]))
                    self.summary.rows(Batch.of([change]), Effects())
                    self.placed.append(change)
                elif isinstance(change, Forked):
                    self.summary.forked(change, Effects())
        return self

    def view(self) -> dict[str, Any]:
        return self.summary.view()

    def naive(self) -> dict[str, Any]:
        """Return the same from all rows that ever came."""
        series: dict[SeriesKey, list[tuple[int, float]]] = {}
        for placed in self.placed:
            node = "" if placed.rank is not None else placed.node
            for name, values in zip(placed.names, placed.values.tolist(), strict=True):
                key = SeriesKey(name, placed.segment, placed.rank, node, placed.stray)
                series.setdefault(key, []).extend(zip(placed.steps.tolist(), values, strict=True))
        names = list(dict.fromkeys(key.metric for key in series))
        counted = "loss" if "loss" in names else next(iter(names), "")
        latest: dict[str, float | str] = {}
        last_step = None
        for name in sorted(names, key=lambda name: name != "loss"):
            rows = list(self._effective(series, name))
            if rows:
                latest[name] = _spell(max(rows, key=lambda row: row[:3])[3])
            steps = [row[0] for row in rows if row[4] is not None]
            last_step = max([*steps, *([] if last_step is None else [last_step])], default=None)
        every = [(key, step) for key, rows in series.items() if key.metric == counted for step, _ in rows]
        alive = sum(not key.stray and not self.fold.tree.is_dead(key.segment, step) for key, step in every)
        pending = sum(len(p.steps) for p in self.fold.pending() if counted in p.names)
        return {
            "latest": latest,
            "last_step": last_step,
            "effective_points": alive,
            "dead_points": len(every) - alive + pending,
        }

    def _effective(
        self, series: dict[SeriesKey, list[tuple[int, float]]], name: str
    ) -> Iterator[tuple[int, tuple[bool, int], int, float, int | None]]:
        for key, rows in series.items():
            for at, (step, value) in enumerate(rows):
                if key.metric == name and not key.stray and not self.fold.tree.is_dead(key.segment, step):
                    yield step, (key.rank is not None, -(key.rank or 0)), at, value, key.rank


def _spell(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


@settings(max_examples=80, deadline=None)
@given(told=stories())
def test_after_any_story_the_summary_equals_one_made_from_all_rows(told: tuple[Story, int]) -> None:
    run = _Run().feed(*tell(*told))
    assert run.view() == run.naive()


@settings(max_examples=25, deadline=None)
@given(told=stories(max_size=8))
def test_asking_at_any_moment_changes_no_later_answer(told: tuple[Story, int]) -> None:
    run, rng = _Run(), random.Random(1)
    for frame in tell(*told):
        run.feed(frame)
        if rng.random() < 0.5:
            assert run.view() == run.naive()
    assert run.view() == run.naive()


@settings(max_examples=25, deadline=None)
@given(told=stories(max_size=8))
def test_a_summary_taken_up_from_what_was_saved_is_the_same(told: tuple[Story, int]) -> None:
    frames = tell(*told)
    run = _Run().feed(*frames[: len(frames) // 2])
    run.summary = taken_over(run.summary, RunSummary(run.lineage, run.summary._points))
    assert run.feed(*frames[len(frames) // 2 :]).view() == run.naive()


def test_every_row_of_a_step_counts_and_the_last_value_is_the_newest() -> None:
    job = Job()
    run = _Run().feed(job.rows([1, 2, 2, 3], {"loss": [1.0, 2.0, 9.0, 3.0]}), job.rows([3], {"loss": [4.0]}))
    assert run.view() == {"latest": {"loss": 4.0}, "last_step": 3, "effective_points": 5, "dead_points": 0}


@pytest.mark.parametrize(
    ("each", "note"),
    [(1, ""), (4, "This job logs 4 rows of loss a step: each is stored, drawn and exported.")],
)
def test_a_job_that_logs_each_micro_batch_has_a_note_and_one_that_repeats_a_step_has_none(each: int, note: str) -> None:
    job = Job()
    steps = [step for step in range(1, 41) for _ in range(each)]
    run = _Run().feed(*(job.rows(steps[at : at + 7]) for at in range(0, len(steps), 7)))
    run.feed(*([job.rows([40])] if each == 1 else []))
    assert run.summary.rows_note == note


def test_a_metric_that_is_logged_rarely_has_its_value_from_before_the_fork_again() -> None:
    job = Job()
    run = _Run()
    for step in range(100, 1_001, 100):
        run.feed(job.rows(range(step - 99, step + 1)), job.rows([step], {"eval/loss": [float(step)]}))
    run.feed(job.rolled_back(350, "k"), job.rows([351]))
    assert (run.view()["latest"]["eval/loss"], run.view()["last_step"]) == (300.0, 351)


def test_what_was_said_before_the_first_point_and_after_a_rollback_to_nothing_is_nothing() -> None:
    job = Job()
    nothing = {"latest": {}, "last_step": None, "effective_points": 0, "dead_points": 0}
    run = _Run()
    assert run.view() == nothing
    run.feed(job.rows([1, 2, 3]), job.rolled_back(-1, "k"))
    assert run.view() == {**nothing, "dead_points": 3}


def test_only_the_first_metrics_are_shown_and_the_loss_always() -> None:
    job = Job()
    run = _Run().feed(*(job.rows([step], {f"layer/{step}": [0.0]}) for step in range(1, 301)))
    run.feed(job.rows([301], {"loss": [2.5]}))
    view = run.view()
    assert (len(view["latest"]), view["latest"]["loss"], view["last_step"]) == (MAX_LATEST + 1, 2.5, 301)
    assert (view["effective_points"], view["dead_points"]) == (1, 0)


def test_while_nothing_forks_neither_rows_nor_questions_read_the_store() -> None:
    job, run = Job(), _Run()
    for at in range(1, 2_000, 50):
        run.feed(job.rows(range(at, at + 50)))
        run.view()
    run.feed(job.rows([1_999, 2_000, 2_001]))
    run.view()
    run.store.reads = 0
    for step in range(2_002, 2_100):
        run.feed(job.rows([step]))
        run.view()
    assert run.store.reads == 0


@pytest.mark.parametrize("steps", [10_000, 40_000])
def test_a_question_is_answered_in_well_under_a_millisecond_whatever_the_length(steps: int) -> None:
    job, names = Job(), [f"m{i}" for i in range(11)]
    run = _Run()
    for at in range(1, steps, 1_000):
        run.feed(job.rows(range(at, at + 1_000), {name: [1.0] * 1_000 for name in ("loss", *names)}))
    took = []
    for _ in range(20):
        start = time.perf_counter()
        run.view()
        took.append(time.perf_counter() - start)
    assert min(took) < 0.5e-3


def test_a_row_of_many_metrics_costs_the_summary_about_as_much_as_one_of_one_metric() -> None:
    one, many = (_cpu_of_rows([f"m{i}" for i in range(metrics)]) for metrics in (1, MAX_LATEST))
    assert many < 8 * one


def _cpu_of_rows(names: list[str]) -> float:
    """Return the least CPU seconds that 200 rows took."""
    took = []
    for _ in range(5):
        run = _Run().feed(Job().rows([1], {name: [1.0] for name in names}))
        (first,) = run.placed
        rows = [
            Placed(
                first.segment, first.source, first.rank, first.node, first.names, first.steps + n, first.times,
                first.values,
            )
            for n in range(1, 201)
        ]  # fmt: skip
        start = time.process_time()
        for row in rows:
            run.summary.rows(Batch.of([row]), Effects())
        took.append(time.process_time() - start)
    return min(took)
