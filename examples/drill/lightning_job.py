"""A Lightning job that resumes from its newest checkpoint, and forgets one thing on order.

By itself Lightning restores weights, optimizer, scheduler and step. Random numbers and the place in the data are the
job's: the callback and the loader below. Without them (``--forget rng``, ``--forget data``) it is a job as most are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from plain import FORGETS
from torch.nn import functional as F

import stabilityclient


class Loader:
    """Batches in order; its place is saved by Lightning, as it has a ``state_dict``."""

    def __init__(self, forget: str | None) -> None:
        self._inputs = torch.randn(50_000, 8, generator=torch.Generator().manual_seed(2))
        self._forget = forget
        self._place = 0

    def __len__(self) -> int:
        return len(self._inputs) // 16

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while self._place < len(self):
            inputs = self._inputs[self._place * 16 : self._place * 16 + 16]
            self._place += 1
            yield inputs, inputs.square().sum(1, keepdim=True)

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._place = 0 if self._forget == "data" else state["place"]


class Model(lightning.LightningModule):
    def __init__(self, folder: Path, forget: str | None) -> None:
        super().__init__()
        self._folder, self._forget = folder, forget
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, targets = batch
        return F.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._rng = checkpoint["rng"]
        if self._forget == "optimizer":
            for state in checkpoint["optimizer_states"]:
                state["state"] = {}
        elif self._forget == "schedule":
            fresh = self.configure_optimizers()["lr_scheduler"]["scheduler"].state_dict()
            checkpoint["lr_schedulers"] = [fresh]
        elif self._forget == "weights":
            older = min(self._folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
            checkpoint["state_dict"] = torch.load(older, weights_only=False)["state_dict"]

    def on_train_start(self) -> None:
        if hasattr(self, "_rng") and self._forget != "rng":
            torch.set_rng_state(self._rng)


class Steps(lightning.Callback):
    """Reports steps and checkpoints."""

    def __init__(self, run: stabilityclient.Run, wrong: int) -> None:
        self._run, self._wrong = run, wrong

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        step = trainer.global_step + self._wrong
        self._run.log(step, {"loss": outputs["loss"].item(), "lr": trainer.optimizers[0].param_groups[0]["lr"]})


def main() -> None:
    """Train 3,000 steps, from the newest checkpoint in ``--folder`` where there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--forget", choices=FORGETS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = stabilityclient.init(project="examples", name="lightning")
    lightning.seed_everything(1)
    found = sorted(args.folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    saving = ModelCheckpoint(args.folder, filename="{step:06d}", every_n_train_steps=5, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=3000, logger=False, enable_progress_bar=False, max_epochs=1,
        enable_model_summary=False, default_root_dir=str(args.folder),
        callbacks=[Steps(run, int(args.forget == "step")), saving],
    )  # fmt: skip
    newest = str(found[-1]) if found else None
    trainer.fit(Model(args.folder, args.forget), Loader(args.forget), ckpt_path=newest, weights_only=False)
    run.finish()


if __name__ == "__main__":
    main()
