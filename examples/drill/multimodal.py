"""The demo's job (`../multimodal/train.py`) with ``--forget``: one thing that it does not restore when it resumes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "multimodal"))

import torch
from plain import FORGETS

import train


def forgetful(forget: str) -> type:
    """Return a trainer that restores all but ``forget``."""

    class Forgetful(train.Trainer):
        begun = 0

        def restore(self, path: Path) -> None:
            place = self.mixture.state_dict()
            super().restore(path)
            if forget == "optimizer":
                self.optimizer.state.clear()
            elif forget == "schedule":
                self.begun = self.step
            elif forget == "rng":
                self.reseed_rng(self.args.seed + 1)  # nothing in this job draws from them after its start
            elif forget == "data":
                self.mixture.load_state_dict(place)
            elif forget == "step":
                self.step += 1
            elif forget == "weights":
                self._older_weights()

        def learning_rate(self, step: int) -> float:
            return super().learning_rate(step - self.begun)

        def _older_weights(self) -> None:
            state: dict[str, Any] = {"model": train.get_state_dict(self.model, self.optimizer)[0]}
            oldest = sorted(self.store._folder.glob("step-*"))[1]  # the first one is that of step 0
            train.dist.barrier()
            torch.distributed.checkpoint.load(state, checkpoint_id=str(oldest))
            self.model.module.load_state_dict(state["model"])

    return Forgetful


if __name__ == "__main__":
    if "--forget" in sys.argv:
        at = sys.argv.index("--forget")
        assert sys.argv[at + 1] in FORGETS, f"--forget {sys.argv[at + 1]}, expected one of {', '.join(FORGETS)}"
        train.Trainer = forgetful(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    train.main()
