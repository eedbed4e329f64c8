"""Run as one of several ranks: trains by a plan and writes the losses that each rank saw.

    replay_job.py OUT [arguments of train.py] -- PLAN

PLAN is a JSON list: ``["train", last_step]``, ``["save"]``, ``["restore", step]``, ``["resume"]``,
``["skip", batches]``, ``["reseed", seed]``, ``["back", step, seed]`` (ordered, with a new seed). OUT gets one JSON list
per rank of ``[step, loss, grad_norm]``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "multimodal"))

import torch
import torch.distributed as dist

from checkpoints import Place
from train import Trainer, parse_arguments


def main() -> None:
    """Obey the plan."""
    out = Path(sys.argv[1])
    cut = sys.argv.index("--")
    plan = json.loads(sys.argv[cut + 1])
    sys.argv = [sys.argv[0], *sys.argv[2:cut]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(parse_arguments())
    saved = {}
    seen = []
    for order, *values in plan:
        if order == "train":
            while trainer.step < values[0]:
                batch = trainer.next_batch()
                metrics, _ = trainer.train_step(trainer.step + 1, batch, lambda name: contextlib.nullcontext())
                seen.append([trainer.step, metrics.get("loss", metrics.get("rank_loss")), metrics.get("grad_norm")])
        elif order == "save":
            saved[trainer.step] = trainer.save(trainer.step)
        elif order == "restore":
            trainer.restore(saved[values[0]])
        elif order == "resume":
            assert trainer.resume()
            saved[trainer.step] = Path(trainer.store.place().path)
        elif order == "back":
            trainer.go_to(Place(str(saved[values[0]]), {"seed": values[1]}))
        elif order == "skip":
            trainer.mixture.skip(values[0])
        elif order == "reseed":
            trainer.reseed(values[0])
    out.with_suffix(f".{dist.get_rank()}.json").write_text(json.dumps(seen))
    trainer.close()


if __name__ == "__main__":
    main()
