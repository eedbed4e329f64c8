"""A job that Lightning's own launcher spreads over two processes: ``python lightning_job.py FOLDER ENOUGH``.

Nothing tells the script that it is one of two before ``fit``; Lightning starts it a second time, with LOCAL_RANK.
The project has the folder's name. Each process appends to ``FOLDER/truth.<rank>`` what it did: ``step <n>`` and
``back <step>``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch

import stabilityclient


class _Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layer(batch).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class _Steps(lightning.Callback):
    """Drives ``run.steps()`` from Lightning's loop."""

    def __init__(self, run: stabilityclient.Run, truth: Path, enough: Path) -> None:
        self._run, self._truth, self._enough = run, truth, enough
        self._steps: Any = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> int | None:
        if self._steps is None:
            rank = torch.distributed.get_rank()
            self._note = self._truth / f"truth.{rank}"
            self._steps = self._run.steps(1)
        step = next(self._steps)
        with self._note.open("a") as file:
            file.write(f"step {step}\n")
        self._run.log(step, {"loss": 2.0 + 1.0 / step})
        # The ranks end at one step: rank 0 has seen that it is enough, and says so to the other.
        over = torch.tensor(float(self._enough.exists() and torch.distributed.get_rank() == 0))
        torch.distributed.broadcast(over, 0)
        trainer.should_stop = bool(over)
        return -1 if over else None

    def back(self, to_step: int) -> None:
        with self._note.open("a") as file:
            file.write(f"back {to_step}\n")


def main() -> None:
    folder, enough = Path(sys.argv[1]), Path(sys.argv[2])
    run = stabilityclient.init(project=folder.name, name="lightning")
    steps = _Steps(run, folder, enough)

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None:
        steps.back(rollback.to_step)

    data = torch.utils.data.DataLoader(torch.zeros(200_000, 2), batch_size=1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[steps], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=os.fspath(folder),
    )  # fmt: skip
    trainer.fit(_Model(), data)
    print(run.run_id, run.finish(), flush=True)


main()
