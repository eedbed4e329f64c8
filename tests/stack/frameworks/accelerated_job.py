"""The job of docs/integrations/accelerate.md: ``python accelerated_job.py FOLDER RANKS``.

Each process appends to ``FOLDER/truth.<rank>`` the samples and the learning rate of each step that it trained:
``step <n> <lr> <first sample of the batch>``. It ends when somebody orders a stop; ``job_faults`` may happen
to it. ``RESUME`` names the checkpoint that it goes on from.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from job_faults import in_the_loader, in_the_model, trained

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/accelerate.md"
_names: dict[str, Any] = {}


class Samples(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """Samples that know their number."""

    def __len__(self) -> int:
        return 400_000

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor]:
        in_the_loader(_names.get("step", 0))
        return number, torch.full((2,), 1.0 + number % 7)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        numbers, inputs = batch
        in_the_model(_names["step"], _names["optimizer"])
        with Path(f"truth.{os.environ.get('RANK', '0')}").open("a") as file:
            file.write(f"step {_names['step']} {_names['rate']!r} {numbers[0]}\n")
        trained(_names["step"])
        return self.layer(inputs).square().mean()  # type: ignore[no-any-return]


def main() -> None:
    os.chdir(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step / 1000))
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, shuffle=True)
    # As a schedule counts steps of the job: one step of all ranks is one of it.
    settings = {"cpu": True, "step_scheduler_with_optimizer": False}
    _names.update(settings=settings, model=model, optimizer=optimizer, schedule=schedule, loader=loader)
    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    if resume := os.environ.get("RESUME"):
        code = code.replace("epochs=2", f"epochs=2, resume_from={resume!r}")
    exec(compile(code, str(_PAGE), "exec"), _names)


main()
