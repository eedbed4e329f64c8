"""A step that goes back is not always a rollback: late rows, counters of a metric's own, two writers, epochs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.points.store import RunStore
from stabilityclient.wire import Frame
from support.job_frames import Job
from support.points.full_curve import entries


class Told:
    """What a fold says of some frames."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        self.fold, self.store, self.rows = LineageFold(), RunStore(), list[Placed]()
        for frame in frames:
            for change in self.fold.apply(frame):
                if isinstance(change, Placed):
                    self.store.add(Batch.of([change]))
                    self.rows.append(change)

    @property
    def rollbacks(self) -> list[int]:
        return [segment.fork_step for segment in self.fold.tree if segment.went_back]

    def effective(self, metric: str = "loss") -> list[int]:
        """Return the steps of every row that is effective, as often as they were logged."""
        tree = self.fold.tree
        return [
            step
            for row in self.rows
            for step in row.steps.tolist()
            if metric in row.names and not row.stray and not tree.is_dead(row.segment, step)
        ]

    def drawn(self, metric: str = "loss") -> list[int]:
        """Return the steps of the effective curve, each once."""
        return sorted({step for entry in entries(self.store, self.fold, metric) for step in entry.steps.tolist()})


def one_by_one(job: Job, steps: Sequence[int], names: Sequence[str] = ("loss",)) -> list[Frame]:
    return [job.rows([step], {name: [2.0 + step / 1e4] for name in names}) for step in steps]


def shuffled(steps: int, window: int, seed: int) -> list[int]:
    """Return steps each of which comes at most ``window`` places early or late."""
    draw = random.Random(seed)
    return sorted(range(steps), key=lambda step: step + draw.uniform(0, window))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 40, 400])
def test_batches_of_a_validation_counted_from_0_in_each_epoch_take_no_other_metric_back(rows: int) -> None:
    job, frames = Job(), list[Frame]()
    for epoch in range(3):
        frames += one_by_one(job, range(100 * epoch, 100 * epoch + 100))
        frames += one_by_one(job, range(rows), ["val/loss"])
    told = Told([*frames, job.event("finish")])
    assert (told.rollbacks, told.drawn()) == ([], list(range(300)))
    assert sorted(told.effective("val/loss")) == sorted([*range(rows)] * 3)
    assert told.fold.pending() == []


def test_a_metric_with_its_own_steps_is_named_once_and_others_are_not() -> None:
    job, frames = Job(), list[Frame]()
    for epoch in range(3):
        frames += one_by_one(job, range(100 * epoch, 100 * epoch + 100), ["loss", "lr"])
        frames += one_by_one(job, range(4), ["val/loss"])
        frames += one_by_one(job, [100 * epoch + 99], ["eval/acc"])
    note = Told(frames).fold.axis.note()
    assert note == ("val/loss counts its own steps, not the run's: its chart has an axis of its own.")


@pytest.mark.parametrize("every", [1, 10], ids=["each step is logged", "one step in ten is logged"])
def test_a_metric_that_counts_its_evaluations_has_its_own_steps_also_where_training_logged_those(every: int) -> None:
    job, frames = Job(), list[Frame]()
    for epoch in range(6):
        frames += one_by_one(job, range(100 * epoch, 100 * epoch + 100, every), ["loss", "lr"])
        frames += one_by_one(job, [epoch + 1], ["val/loss"])
    told = Told([*frames, job.event("finish")])
    assert (told.rollbacks, told.drawn(), told.drawn("val/loss")) == (
        [], list(range(0, 600, every)), list(range(1, 7)),
    )  # fmt: skip
    assert told.fold.axis.note().startswith("val/loss counts its own steps")


def test_an_evaluation_that_is_done_later_at_the_steps_of_the_run_keeps_those() -> None:
    job, frames = Job(), list[Frame]()
    for part in range(8):
        frames += one_by_one(job, range(100 * part, 100 * part + 100), ["loss", "lr"])
        frames += one_by_one(job, [100 * part + 20], ["val/loss"])
    told = Told(frames)
    assert (told.fold.axis.note(), told.drawn("val/loss")) == ("", [100 * part + 20 for part in range(8)])


@pytest.mark.parametrize("window", [1, 3, 4, 8, 20, 48])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stride", [1, 10])
def test_rows_that_come_in_another_order_fill_what_was_left_out(window: int, seed: int, stride: int) -> None:
    steps = [stride * step for step in shuffled(400, window, seed)]
    told = Told(one_by_one(Job(), steps))
    assert (told.rollbacks, told.effective()) == ([], steps)


@pytest.mark.parametrize("behind", [0, 1, 5, 30])
def test_two_writers_of_one_name_are_no_rollback(behind: int) -> None:
    job, order = Job(), list[int]()
    for step in range(400 + behind):
        order += ([step] if step < 400 else []) + ([step - behind] if step >= behind else [])
    told = Told(one_by_one(job, order))
    assert (told.rollbacks, told.drawn()) == ([], list(range(400)))
    assert len(told.effective()) >= 797, "the first ones of the second writer may be strays"


def test_an_evaluation_that_logs_the_name_of_the_loss_late_is_no_rollback() -> None:
    job, frames = Job(), list[Frame]()
    for part in range(6):
        frames += one_by_one(job, range(100 * part, 100 * part + 100))
        frames += one_by_one(job, range(100 * part + 50, 100 * part + 53))
    told = Told([*frames, *one_by_one(job, [600])])
    assert (told.rollbacks, told.drawn()) == ([], list(range(601)))


def test_rows_of_an_evaluation_whose_step_is_the_epoch_are_effective_though_they_share_names_with_training() -> None:
    job, frames = Job(), list[Frame]()
    for epoch in range(1, 41):
        frames += one_by_one(job, range(50 * epoch - 40, 50 * epoch + 10, 10), ["loss", "lr", "time", "data_time"])
        frames += one_by_one(job, [epoch], ["acc/top1", "time", "data_time"])
    told = Told(frames)
    assert (told.rollbacks, told.drawn(), told.drawn("acc/top1")) == (
        [], list(range(10, 2001, 10)), list(range(1, 41)),
    )  # fmt: skip
    assert told.fold.axis.note().startswith("acc/top1 counts its own steps")


def test_a_metric_whose_own_steps_are_beyond_the_runs_does_not_say_where_the_run_is() -> None:
    state, job = RunState("run", lambda: 5_000.0), Job()
    for epoch in range(2):
        frames = one_by_one(job, range(100 * epoch, 100 * epoch + 100)) + one_by_one(job, range(400), ["val/loss"])
        for frame in frames:
            state.apply(frame, replayed=False)
    state.apply(job.event("finish"), replayed=False)
    view = state.view()
    assert (view.last_step, view.effective_points, view.rollbacks, len(view.log_notes)) == (199, 200, 0, 1)


def test_a_running_loop_that_goes_back_takes_the_metrics_along_that_are_logged_apart_from_the_loss() -> None:
    job, frames = Job(), list[Frame]()
    for step in [*range(1, 101), *range(61, 81)]:
        frames += one_by_one(job, [step], ["lr"]) + one_by_one(job, [step], ["loss"])
    told = Told(frames)
    assert told.rollbacks == [60]
    assert [told.effective(name) for name in ("loss", "lr")] == [[*range(1, 61), *range(61, 81)]] * 2


def test_a_process_that_validates_before_it_goes_on_does_not_go_back_by_that() -> None:
    first, again = Job(0, 1), Job(0, 2)
    frames = one_by_one(first, range(100)) + one_by_one(first, range(3), ["val/loss"])
    frames += one_by_one(again, range(3), ["val/loss"]) + one_by_one(again, range(100, 150))
    told = Told(frames)
    assert (told.rollbacks, told.drawn()) == ([], list(range(150)))


def epochs_of(job: Job, epochs: int, rows: int, *, fall: float = 0.4, **more: Sequence[float]) -> list[Frame]:
    draw, frames = random.Random(rows), list[Frame]()
    for epoch in range(epochs):
        for step in range(1, rows + 1):
            done = epoch + step / rows
            frames.append(
                job.rows(
                    [step],
                    {"loss": [3.0 - fall * done + draw.gauss(0, 0.03)], **({"epoch": [float(epoch)]} if more else {})},
                )
            )
    return frames


@pytest.mark.parametrize("rows", [5, 40, 400])
def test_steps_that_start_again_with_each_epoch_are_one_curve(rows: int) -> None:
    told = Told(epochs_of(Job(), 5, rows))
    assert (told.rollbacks, told.drawn()) == ([], list(range(1, 5 * rows + 1)))


def test_a_risen_epoch_shows_that_the_steps_count_within_it_where_the_loss_does_not() -> None:
    told = Told(epochs_of(Job(), 5, 40, fall=0.0, epoch=()))
    assert (told.rollbacks, told.drawn()) == ([], list(range(1, 201)))


def test_a_flat_loss_shows_it_by_the_second_period() -> None:
    told = Told(epochs_of(Job(), 6, 40, fall=0.0))
    assert (told.rollbacks, len(told.drawn())) == ([0], 200)


def test_twelve_restarts_to_the_beginning_are_twelve_whoever_tells_of_them() -> None:
    def trained(job: Job, seed: int) -> list[Frame]:
        draw = random.Random(seed)
        steps = range(1, draw.randint(40, 60))
        return [job.rows([step], {"loss": [8.0 / (1 + step / 20) + draw.gauss(0, 0.02)]}) for step in steps]

    one, declared, frames = Job(), Job(), list[list[Frame]]([[], [], []])
    for number in range(13):
        frames[0] += trained(one, number)
        frames[1] += [declared.rolled_back(-1, f"k{number}")] * (number > 0) + trained(declared, number)
        frames[2] += trained(Job(0, number + 1), number)
    assert [len(Told(each).rollbacks) for each in frames] == [12, 12, 12]
