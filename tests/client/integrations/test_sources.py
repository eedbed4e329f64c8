"""``Sources``: the loss and the share of each source of a step, in whatever loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from support.agent.ordered import deliver, rollback_order
from support.agent.spooled import stored
from support.installed import needs

pytestmark = needs("torch", "losses are torch's")

Start = Callable[..., stabilityclient.Run]


def told(run: stabilityclient.Run) -> dict[int, dict[str, float]]:
    """Return what a run has of sources, by step."""
    rows: dict[int, dict[str, float]] = {}
    for step, _, metrics in stored(run.folder).rows():
        values = {name: value for name, value in metrics.items() if name.startswith(("loss/", "ratio/"))}
        if values:
            rows.setdefault(step, {}).update(values)
    return rows


def sources(run: stabilityclient.Run, **more: Any) -> Any:
    from stabilityclient.integrations.sources import Sources

    return Sources(run, ["web", "code"], **more)


def test_a_step_has_the_mean_of_each_source_over_its_micro_batches_and_nothing_of_one_without_samples(
    start: Start,
) -> None:
    import torch

    run = start()
    counted = sources(run)
    assert run.boundary(1) is None
    counted.add(torch.tensor([1.0, 2.0, 6.0]), ["web", "code", "web"])
    counted.add(torch.tensor([5.0, 4.0]), torch.tensor([0, 1]))
    assert run.boundary(2) is None
    counted.add(torch.tensor(3.0), "web", samples=4)
    with torch.no_grad():
        counted.add(torch.tensor([9.0]), ["code"])  # of an evaluation
    assert run.boundary(3) is None
    assert run.boundary(4) is None
    assert told(run) == {
        1: {"loss/web": 4.0, "loss/code": 3.0, "ratio/web": 0.6, "ratio/code": 0.4},
        2: {"loss/web": 3.0, "ratio/web": 1.0, "ratio/code": 0.0},
    }


def test_what_is_of_no_source_is_in_the_total_only(start: Start, quiet: None) -> None:
    import torch

    run = start()
    counted = sources(run)
    run.boundary(1)
    counted.add(torch.tensor([1.0, 2.0]), ["web", "law"])
    counted.add(torch.tensor([1.0, 2.0]), torch.tensor([2, -1]))
    counted.add(torch.tensor([[1.0, 2.0]]), ["web"])
    counted.add(torch.tensor([1.0, 2.0]), ["web"])
    run.boundary(2)
    assert told(run) == {1: {"loss/web": 1.0, "ratio/web": 0.25, "ratio/code": 0.0}}
    assert run._guard.swallowed == 2


def test_counted_over_several_steps_what_a_rollback_made_void_is_dropped(start: Start, tmp_path: Path) -> None:
    import torch

    run = start()
    counted = sources(run, every=2)
    run.can_roll_back()
    path = tmp_path / "step-2"
    path.touch()
    for step in range(1, 6):
        assert run.boundary(step) is None
        counted.add(torch.tensor([float(step)]), ["web"])
        if step == 4:
            deliver(run, rollback_order(2, 6, checkpoint=str(path)))
    rollback: Any = run.boundary(6)
    run.restored(rollback)
    for step in (3, 4):
        assert run.boundary(step) is None
        counted.add(torch.tensor([10.0]), ["code"])
    run.boundary(5)
    rows = told(run)
    assert rows[2] == {"loss/web": 1.5, "ratio/web": 1.0, "ratio/code": 0.0}
    assert rows[4]["loss/code"] == 10.0
    assert rows[4]["ratio/web"] == 0.0


@pytest.mark.parametrize("names", ["web", [], ["web", "web"]])
def test_names_that_are_none_are_refused(names: Any, start: Start) -> None:
    from stabilityclient.integrations.sources import Sources

    with pytest.raises(ValueError, match="expected the names of the sources, each once"):
        Sources(start(), names)


#: Of each framework's job: two micro-batches a step of two samples each, from source 0, 1, 0, 0 and so on; the loss of
#: a sample is its number.
COLUMNS = {"loss/web": lambda first: first + 5 / 3, "loss/code": lambda first: first + 1.0}


def samples() -> list[dict[str, Any]]:
    import torch

    return [{"x": torch.tensor([float(number)]), "source": int(number % 4 == 1)} for number in range(20)]


def expected(steps: int) -> dict[int, dict[str, float]]:
    rows = {}
    for step in range(1, steps + 1):
        first = 4.0 * (step - 1)
        losses = {name: of(first) for name, of in COLUMNS.items()}
        rows[step] = losses | {"ratio/web": 0.75, "ratio/code": 0.25}
    return rows


@pytest.mark.soak
@needs("lightning", "this job is Lightning's")
@pytest.mark.filterwarnings("ignore")
def test_the_line_is_all_in_lightning(start: Start, tmp_path: Path) -> None:
    import lightning
    import torch

    from stabilityclient.integrations.lightning import fit

    run = start()
    counted = sources(run)

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, index: int) -> Any:
            losses = batch["x"][:, 0] + 0 * self.weight
            counted.add(losses, batch["source"])
            return losses.mean()

        def validation_step(self, batch: Any, index: int) -> None:
            counted.add(batch["x"][:, 0], batch["source"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data: Any = samples()
    loader = torch.utils.data.DataLoader(data, 2)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, accumulate_grad_batches=2, logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    fit(trainer, Model(), loader, loader, run=run)
    assert told(run) == {step: pytest.approx(row) for step, row in expected(5).items()}


@needs("transformers", "this job is Trainer's")
@pytest.mark.filterwarnings("ignore")
def test_the_line_is_all_in_trainer(start: Start, tmp_path: Path) -> None:
    import torch
    import transformers

    from stabilityclient.integrations.transformers import train

    run = start()
    counted = sources(run)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any, **_: Any) -> Any:
            return {"logits": x[:, 0] + 0 * self.weight}

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            outputs = model(inputs["x"])
            counted.add(outputs["logits"], inputs["source"])
            loss = outputs["logits"].mean()
            return (loss, outputs) if return_outputs else loss

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

    data: Any = samples()
    settings = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1, use_cpu=True,
        remove_unused_columns=False, label_names=["source"], report_to=[], disable_tqdm=True,
        eval_strategy="steps", eval_steps=2, save_strategy="no",
    )  # fmt: skip
    train(InOrder(Model(), settings, train_dataset=data, eval_dataset=data), run=run)
    assert told(run) == {step: pytest.approx(row) for step, row in expected(5).items()}


@needs("accelerate", "this job is Accelerate's")
@pytest.mark.filterwarnings("ignore")
def test_the_line_is_all_in_accelerate(start: Start) -> None:
    import torch
    from accelerate import Accelerator

    from stabilityclient.integrations.accelerate import steps

    run = start()
    counted = sources(run)
    data: Any = samples()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 2))
    for _, batch in steps(accelerator, loader, run=run):
        with accelerator.accumulate(model):
            losses = batch["x"][:, 0] + 0 * model(batch["x"])[:, 0]
            counted.add(losses, batch["source"])
            accelerator.backward(losses.mean())
            optimizer.step()
    assert told(run) == {step: pytest.approx(row) for step, row in expected(5).items()}


@pytest.mark.soak
@needs("lightning", "this job is Lightning's")
@pytest.mark.filterwarnings("ignore")
def test_a_combined_loader_of_lightning_has_each_source_by_its_name(start: Start, tmp_path: Path) -> None:
    import lightning
    import torch
    from lightning.pytorch.utilities import CombinedLoader

    from stabilityclient.integrations.lightning import fit

    run = start()
    counted = sources(run)

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batches: Any, index: int) -> Any:
            total: Any = 0.0
            for name, batch in batches.items():
                loss = batch.mean() + 0 * self.weight[0]
                counted.add(loss, name, samples=len(batch))
                self.log(f"loss/by_hand_{name}", loss)
                total = total + loss
            return total

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    numbers: Any = torch.arange(24.0)
    loaders = {"web": torch.utils.data.DataLoader(numbers, 3), "code": torch.utils.data.DataLoader(-numbers[:8], 1)}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    fit(trainer, Model(), CombinedLoader(loaders, "min_size"), run=run)
    for step, row in told(run).items():
        web, code = 3.0 * step - 2.0, 1.0 - step
        assert row == {
            "loss/web": web, "loss/code": code, "loss/by_hand_web": web, "loss/by_hand_code": code,
            "ratio/web": 0.75, "ratio/code": 0.25,
        }  # fmt: skip
    assert [*told(run)] == [*range(1, 9)]
