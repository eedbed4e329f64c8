"""The job of docs/integrations/composer.md: ``python composed_job.py FOLDER RANKS KIND [SETTING=VALUE ...]``.

KIND is ``shuffled``, ``ordered`` or ``subset`` (an epoch is less than the loader has). Each process appends to
``FOLDER/truth.<rank>`` the samples, the learning rate and the loss of each step that it trained:
``step <n> <lr> <first sample of the batch> <loss>``. It ends when somebody orders a stop; ``job_faults`` may happen to
it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from absent import standing_in_for
from job_faults import in_the_loader, in_the_model, trained

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/composer.md"
#: Modules of torchvision that Composer imports when it is imported.
_VISION = ("datasets", "models", "models.resnet", "ops", "transforms", "transforms.functional", "utils")
SAMPLES = 4_000
_names: dict[str, Any] = {}


class Samples(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    """Samples that know their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor]:
        in_the_loader(_step())
        return number, torch.full((4,), 1.0 + number % 7)


def _step() -> int:
    trainer = _names.get("trainer")
    return 0 if trainer is None else int(trainer.state.timestamp.batch) + 1


def _model() -> Any:
    from composer.models import ComposerModel
    from torchmetrics import MeanMetric

    class Model(ComposerModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layers = (torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
            self.layers = torch.nn.Sequential(*layers)
            self.mean = MeanMetric()

        def forward(self, batch: Any) -> torch.Tensor:
            in_the_model(_step(), _names["trainer"].state.optimizers[0])
            return self.layers(batch[1])  # type: ignore[no-any-return]

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            loss = (outputs - 1).square().mean()
            rate = _names["trainer"].state.optimizers[0].param_groups[0]["lr"]
            with Path(f"truth.{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(f"step {_step()} {rate!r} {batch[0][0]} {loss.item()!r}\n")
            trained(_step())
            return loss

        def get_metrics(self, is_train: bool) -> dict[str, Any]:
            return {"Mean": self.mean} if is_train else {}

        def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
            metric.update(outputs)

    return Model()


def main() -> None:
    os.chdir(sys.argv[1])
    world, kind, more = int(sys.argv[2]), sys.argv[3], [one.split("=") for one in sys.argv[4:]]
    with standing_in_for("torchvision", *_VISION):
        from composer.algorithms import GradientClipping
        from composer.callbacks import LRMonitor, OptimizerMonitor, SpeedMonitor
        from composer.optim import CosineAnnealingScheduler
        from composer.utils import dist

    torch.manual_seed(0)
    model = _model()
    data = Samples()
    if world > 1:
        dist.initialize_dist("cpu")
    sampler = dist.get_sampler(data, shuffle=kind == "shuffled") if world > 1 else None
    loader = torch.utils.data.DataLoader(data, 2, shuffle=kind == "shuffled" and sampler is None, sampler=sampler)
    settings = {
        "device": "cpu", "train_dataloader": loader, "optimizers": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "max_duration": "400ep", "schedulers": CosineAnnealingScheduler(), "progress_bar": False, "seed": 17,
        "algorithms": [GradientClipping("norm", 1.0)], "auto_log_hparams": False,
        "callbacks": [LRMonitor(), OptimizerMonitor(), SpeedMonitor(window_size=10)],
        **({"train_subset_num_batches": 900} if kind == "subset" else {}), **dict(more),
    }  # fmt: skip
    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    _names.update(settings=settings, model=model)
    exec(compile(code, str(_PAGE), "exec"), _names)


main()
