"""The job of docs/integrations/transformers.md, a small GPT-2: ``python trainer_job.py FOLDER RANKS``.

Each process appends to ``FOLDER/truth.<rank>`` the samples and the learning rate of each step that it trained:
``step <n> <lr> <first sample of the batch>``. It ends when somebody orders a stop; ``job_faults`` may happen
to it. ``RESUME=1``: it goes on from its newest checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from job_faults import in_the_loader, in_the_model, trained

_PAGE = Path(__file__).resolve().parents[3] / "docs/integrations/transformers.md"
_VOCABULARY = 128
_names: dict[str, Any] = {}


def _step() -> int:
    trainer = _names.get("trainer")
    return 0 if trainer is None else trainer.state.global_step + 1


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples that say their number."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        in_the_loader(_step())
        digits = [number // _VOCABULARY**place % _VOCABULARY for place in range(3)]
        tokens = torch.tensor([*digits, *((number + place) % 7 for place in range(5))])
        return {"input_ids": tokens, "labels": tokens}


class Model(transformers.GPT2LMHeadModel):
    def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
        trainer = _names["trainer"]
        in_the_model(_step(), trainer.optimizer)
        step, rate = _step(), trainer.optimizer.param_groups[0]["lr"]
        if self.training:
            sample = sum(int(digit) * _VOCABULARY**place for place, digit in enumerate(input_ids[0, :3]))
            with Path(f"truth.{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(f"step {step} {rate!r} {sample}\n")
            trained(step)
        return super().forward(input_ids, labels=labels, **more)


def _to_cpu(storage: Any, place: str) -> Any:
    return storage if place.startswith("cpu:") else None


def main() -> None:
    os.chdir(sys.argv[1])
    # With several ranks on the processor Trainer loads an optimizer to "cpu:0", which torch does not know.
    torch.serialization.register_package(50, lambda storage: None, _to_cpu)
    settings = {
        "num_train_epochs": 50, "per_device_train_batch_size": 2, "learning_rate": 1e-3, "lr_scheduler_type": "cosine",
        "warmup_steps": 10, "use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False,
        "logging_steps": 10,
    }  # fmt: skip
    config = transformers.GPT2Config(
        vocab_size=_VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False, bos_token_id=0,
        eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    code = _PAGE.read_text().split("```python\n")[1].split("```")[0]
    if os.environ.get("RESUME"):
        code = code.replace("train(trainer, run", "train(trainer, True, run")
    _names.update(settings=settings, dataset=Samples(), model=Model(config))
    exec(compile(code, str(_PAGE), "exec"), _names)


main()
