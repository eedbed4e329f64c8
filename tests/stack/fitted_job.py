"""The job of docs/integrations/lightning.md: ``python fitted_job.py FOLDER DEVICES``.

Each process appends to ``FOLDER/truth.<rank>`` the samples and the learning rate of each step that it trained:
``step <n> <lr> <first sample of the batch>``. It ends when somebody orders a stop. ``RESUME`` names the checkpoint that
it goes on from; ``job_faults`` may happen to it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from frameworks.job_faults import trained

_PAGE = Path(__file__).resolve().parents[2] / "docs/integrations/lightning.md"


class Samples(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """Samples that know their number."""

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor]:
        return number, torch.full((2,), 1.0 + number % 7)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        numbers, inputs = batch
        step, rate = self.trainer.global_step + 1, self.trainer.optimizers[0].param_groups[0]["lr"]
        with Path(f"truth.{self.trainer.global_rank}").open("a") as file:
            file.write(f"step {step} {rate!r} {numbers[0]}\n")
        trained(step)
        loss = self.layer(inputs).square().mean()
        self.log("train_loss", loss)
        return loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 1000))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    os.chdir(sys.argv[1])
    devices = int(sys.argv[2])
    settings = {
        "accelerator": "cpu", "devices": devices, "strategy": "ddp" if devices > 1 else "auto", "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2)
    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    if resume := os.environ.get("RESUME"):
        code = code.replace("loader, run=run", f"loader, ckpt_path={resume!r}, run=run")
    exec(compile(code, str(_PAGE), "exec"), {"settings": settings, "loader": loader, "model": Model()})


main()
