"""After a rollback a Lightning job goes on with exactly the batches that were ordered, wherever its epochs end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stabilityclient
from support.agent.ordered import answers, deliver, rollback_order
from support.agent.spooled import stored
from support.installed import needs

pytestmark = [
    needs("lightning", "the jobs of this test are Lightning's"),
    # Of Lightning itself, of torch and of jobs as small as these.
    pytest.mark.filterwarnings("ignore"),
]

Start = Callable[..., stabilityclient.Run]
#: Batches of an epoch, of one sample each.
EPOCH = 10
EPOCHS = 3


class Case(NamedTuple):
    """A job and an order.

    ``every``: steps between two checkpoints, None for one at the end of each epoch.
    """

    to_step: int
    at_step: int
    skip: int
    every: int | None
    accumulate: int = 1
    loader: str = "map"
    validates: bool = False


CASES = {
    "within an epoch": Case(4, 8, 3, 2),
    "nothing is skipped": Case(4, 8, 0, 2),
    "saved at the last batch of an epoch": Case(10, 18, 2, 5),
    "saved at the end of an epoch": Case(10, 18, 2, None),
    "saved at the end of an epoch, with evaluation": Case(10, 18, 2, None, validates=True),
    "over the end of an epoch": Case(8, 9, 4, 2),
    "with gradient accumulation, over the end of an epoch": Case(4, 8, 3, 2, accumulate=2),
    "a loader without length": Case(12, 18, 2, 3, loader="iterable"),
    "a loader without length, saved at the end of an epoch": Case(10, 18, 2, None, loader="iterable"),
    "a loader with workers": Case(15, 18, 2, 5, loader="workers"),
    "a loader that keeps its place": Case(4, 8, 3, 2, loader="stateful"),
}


def _order(case: Case, **more: Any) -> dict[str, Any]:
    given = {"to_step": case.to_step, "at_step": case.at_step, "skip_batches": case.skip}
    return rollback_order(**{**given, **more})


def _loader(kind: str) -> Any:
    import torch

    numbers = [torch.tensor(float(number)) for number in range(EPOCH)]

    class Iterable(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(numbers)

    class Stateful:
        place = 0

        def __len__(self) -> int:
            return EPOCH

        def __iter__(self) -> Iterator[Any]:
            self.place %= EPOCH
            while self.place < EPOCH:
                self.place += 1
                yield numbers[self.place - 1].reshape(1)

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]

    if kind == "stateful":
        return Stateful()
    data: Any = Iterable() if kind == "iterable" else numbers
    if kind == "own sampler":
        return torch.utils.data.DataLoader(data, batch_size=1, sampler=[*range(EPOCH)])
    return torch.utils.data.DataLoader(
        data, batch_size=1, num_workers=2 if kind == "workers" else 0, shuffle=kind == "shuffled"
    )


def _trained(
    run: stabilityclient.Run,
    case: Case,
    folder: Path,
    dies_at: int | None = None,
    resume: Path | None = None,
    **more: Any,
) -> list[tuple[int, int, int]]:
    """Train with an order; return step, epoch and sample of each batch.

    Args:
        dies_at: the step after the rollback in which the job dies.
    """
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    from stabilityclient.integrations.lightning import fit

    seen: list[tuple[int, int, int]] = []
    order = _order(case, **{"checkpoint": str(folder / f"step={case.to_step}.ckpt"), **more})

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            step = self.trainer.global_step + 1
            if step == case.at_step - 1 and not any(number == step for number, _, _ in seen):
                deliver(run, order)
            if step == dies_at and any(number > step for number, _, _ in seen):
                raise ArithmeticError
            seen.append((step, self.trainer.current_epoch, int(batch[0])))
            return self.layer(batch).square().mean()  # type: ignore[no-any-return]

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.log("val_loss", self.layer(batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=case.accumulate, default_root_dir=str(folder),
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=case.every, save_top_k=-1)],
    )  # fmt: skip
    evaluated = _loader("map") if case.validates else None
    with pytest.raises(ArithmeticError) if dies_at is not None else nullcontext():
        fit(trainer, Model(), _loader(case.loader), evaluated, ckpt_path=resume, run=run)
    run.finish()
    return seen


def _expected(case: Case) -> list[tuple[int, int, int]]:
    """Return the same by the definition: two passes over a list of batches, and some left out in the second one."""
    batches = [(epoch, sample) for epoch in range(EPOCHS) for sample in range(EPOCH)]
    before = case.to_step * case.accumulate
    first = batches[: (case.at_step - 1) * case.accumulate]
    second = batches[before + case.skip :]

    def numbered(chosen: list[tuple[int, int]], step: int) -> list[tuple[int, int, int]]:
        rows, micro = [], 0
        for place, (epoch, sample) in enumerate(chosen):
            rows.append((step, epoch, sample))
            micro += 1
            last = place + 1 == len(chosen) or chosen[place + 1][0] != epoch  # Lightning steps at an epoch's end
            if micro == case.accumulate or last:
                step, micro = step + 1, 0
        return rows

    return numbered(first, 1) + numbered(second, case.to_step + 1)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_after_a_rollback_exactly_the_ordered_batches_are_left_out(case: Case, start: Start, tmp_path: Path) -> None:
    run = start()
    assert _trained(run, case, tmp_path / "saved") == _expected(case)
    assert answers(run) == [("ready", None), ("acted", {"skip_batches": case.skip})]


@pytest.mark.parametrize("loader", ["map", "stateful"])
@pytest.mark.soak
def test_a_job_that_dies_before_it_saves_does_what_a_rollback_ordered_again_and_once(
    loader: str, start: Start, tmp_path: Path
) -> None:
    case, saved = Case(4, 8, 3, 2, loader=loader), tmp_path / "saved"
    runs = [start(run_id=f"r{number}") for number in range(4)]
    whole = _expected(case)[7:]
    assert _trained(runs[0], case, saved, dies_at=5, lr_scale=0.5)[7:] == []
    assert _trained(runs[1], case, saved, to_step=99, resume=saved / "step=4.ckpt") == whole
    later = _trained(runs[2], case, saved, to_step=99, resume=saved / "step=14.ckpt")
    assert later == [row for row in whole if row[0] > 14]
    back = _trained(runs[3], case, saved, to_step=99, resume=saved / "step=4.ckpt")
    assert back[0] == (5, 0, 4)  # as it was: a later checkpoint has it
    rates = [{values["lr"] for _, _, values in stored(run.folder).rows()} for run in runs]
    assert rates == [{1e-3}, {5e-4}, {5e-4}, {1e-3}]


@pytest.mark.parametrize("loader", ["shuffled", "own sampler"])
def test_a_loader_whose_order_may_change_is_not_offered_to_skip_and_an_order_to_is_refused(
    loader: str, start: Start, tmp_path: Path
) -> None:
    run = start()
    seen = _trained(run, Case(4, 8, 3, 2, loader=loader), tmp_path / "saved")
    assert [step for step, _, _ in seen] == [*range(1, EPOCH * EPOCHS + 1)]
    assert [event.data for event in stored(run.folder).events("handler")] == [{"can": ["lr_scale"], "branches": True}]
    last = stored(run.folder).events("command")[-1].data
    assert (last["state"], last["detail"]) == ("failed", "the job refused: this job can't change skip_batches")


def test_a_rollback_without_a_checkpoint_is_refused_and_training_goes_on(start: Start, tmp_path: Path) -> None:
    run = start()
    seen = _trained(run, Case(4, 8, 0, 2), tmp_path / "saved", checkpoint=None)
    assert [step for step, _, _ in seen] == [*range(1, EPOCH * EPOCHS + 1)]
    assert [state for state, _ in answers(run)] == ["ready", "failed"]


def test_a_checkpoint_of_another_step_has_failed_and_the_timeline_says_where_the_job_is(
    start: Start, tmp_path: Path
) -> None:
    run = start()
    other = str(tmp_path / "saved" / "step=2.ckpt")
    seen = _trained(run, Case(4, 8, 0, 2), tmp_path / "saved", checkpoint=other)
    assert [step for step, _, _ in seen] == [*range(1, 8), *range(3, EPOCH * EPOCHS + 1)]
    assert [state for state, _ in answers(run)] == ["ready", "failed"]
    assert [(e.step, e.data["cause"]) for e in stored(run.folder).events("segment")] == [(2, "declared")]


def test_rows_phases_and_checkpoints_are_those_of_the_job(start: Start, tmp_path: Path) -> None:
    run = start()
    assert run._components is not None
    phases = run._components.slot.phases
    _trained(run, Case(4, 8, 3, 2, validates=True), tmp_path / "saved")
    assert {*phases.known} >= {"data", "forward", "backward", "optimizer", "checkpoint", "eval", "rollback"}
    store = stored(run.folder)
    assert [step for step in store.steps(0) if step <= 3] == [1, 2, 3]
    saved = {(event.step, Path(event.data["path"]).exists()) for event in store.events("checkpoint")}
    assert saved == {(step, True) for step in range(2, EPOCH * EPOCHS - 2, 2)}
