"""A Hugging Face Trainer job that resumes from its newest checkpoint, and forgets one thing on order.

Needs transformers and accelerate. Trainer restores everything by itself; what is forgotten is taken out of the newest
checkpoint before it looks, and ``--forget data`` is its own ``ignore_data_skip``.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from plain import FORGETS

import stabilityclient


class Steps(transformers.TrainerCallback):
    """Reports what Trainer logs."""

    def __init__(self, run: stabilityclient.Run) -> None:
        self._run = run

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        rows = {name: float(value) for name, value in (logs or {}).items() if name in ("loss", "grad_norm")}
        rows |= {"lr": float(logs["learning_rate"])} if logs and "learning_rate" in logs else {}
        self._run.log(state.global_step, rows)


def take_out(forget: str, checkpoints: list[Path]) -> None:
    """Take one thing out of the newest checkpoint."""
    newest = checkpoints[-1]
    if forget == "optimizer":
        state = torch.load(newest / "optimizer.pt", weights_only=False)
        torch.save({**state, "state": {}}, newest / "optimizer.pt")
    elif forget == "schedule":
        state = torch.load(newest / "scheduler.pt", weights_only=False)
        torch.save({**state, "last_epoch": 0, "_step_count": 1}, newest / "scheduler.pt")
    elif forget == "rng":
        (newest / "rng_state.pth").unlink()
    elif forget == "step":
        file = newest / "trainer_state.json"
        state = json.loads(file.read_text())
        file.write_text(json.dumps({**state, "global_step": state["global_step"] + 1}))
    elif forget == "weights":
        shutil.copy(checkpoints[0] / "model.safetensors", newest / "model.safetensors")


def main() -> None:
    """Train 500 steps, from the newest checkpoint in ``--folder`` where there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--forget", choices=FORGETS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = stabilityclient.init(project="examples", name="trainer")
    transformers.set_seed(1)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    tokens = torch.randint(0, 64, (8_000, 16), generator=torch.Generator().manual_seed(2))
    settings = transformers.TrainingArguments(
        output_dir=str(args.folder), max_steps=500, per_device_train_batch_size=16, save_steps=5, logging_steps=1,
        learning_rate=1e-2, warmup_steps=50, report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
        ignore_data_skip=args.forget == "data",
    )  # fmt: skip
    # A checkpoint that was being written when the job was killed has no state yet: Trainer would fail at it.
    whole = (path.parent for path in args.folder.glob("checkpoint-*/trainer_state.json"))
    found = sorted(whole, key=lambda path: int(path.name.partition("-")[2]))
    if found and args.forget:
        take_out(args.forget, found)
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), settings, callbacks=[Steps(run)],
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(found[-1]) if found else None)
    run.finish()


if __name__ == "__main__":
    main()
