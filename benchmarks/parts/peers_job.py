"""A small real training with four mishaps, whose every row goes to Stabilityboard, TensorBoard and, as JSON, to stdout.

    python benchmarks/parts/peers_job.py LOGS      # the server from STABILITY_URL; LOGS is TensorBoard's folder

A network learns two data sets, one step in less than a millisecond. One batch has targets 60 times too large (a spike
of one step: the gradient is clipped), one has a NaN (its update is left out). Then the learning rate is 40 times too
high for 400 steps, and the job goes back to its checkpoint and says so. At the end its loader never returns.
"""

from __future__ import annotations

import copy
import json
import sys
import time

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import stabilityclient

SPIKE, NOT_A_NUMBER, TOO_FAST, SEEN_AT, CHECKPOINT, HANG = 3_000, 5_000, 7_000, 7_400, 6_800, 10_000
BATCH, CLIP, RATE = 32, 1.0, 2e-3


class Training:
    """The model, its optimizer, and the data of each step."""

    def __init__(self) -> None:
        torch.manual_seed(11)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE)
        self.teachers = {
            name: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)) for name in ("code", "web")
        }
        self.attempt = 1

    def step(self, number: int) -> dict[str, float]:
        """Train on one batch of each data set and return what is logged of it."""
        random = torch.Generator().manual_seed(1_000_003 * self.attempt + number)
        rate = RATE * (40.0 if self.attempt == 1 and number > TOO_FAST else 1.0)
        losses = {}
        for name, teacher in self.teachers.items():
            inputs = torch.randn(BATCH, 16, generator=random)
            with torch.no_grad():
                targets = teacher(inputs) + 0.1 * torch.randn(BATCH, 1, generator=random)
            if number == SPIKE and name == "code":
                targets = targets * 60.0
            if number == NOT_A_NUMBER and name == "web":
                inputs[0, 0] = torch.nan
            losses[name] = nn.functional.mse_loss(self.model(inputs), targets)
        loss = sum(losses.values()) / len(losses)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if torch.isfinite(norm):
            self.optimizer.step()
        rows = {"loss": loss, **{f"loss/{name}": one for name, one in losses.items()}, "grad_norm": norm}
        return {name: float(value.detach()) for name, value in rows.items()} | {"lr": rate}

    def saved(self) -> tuple[dict[str, object], dict[str, object]]:
        """Return the state of model and optimizer."""
        return copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())

    def restore(self, saved: tuple[dict[str, object], dict[str, object]]) -> None:
        """Go on from a state that was saved, with other data."""
        self.model.load_state_dict(saved[0])
        self.optimizer.load_state_dict(saved[1])
        self.attempt += 1


def main(logs: str) -> None:
    """Train until the loader hangs, for good."""
    torch.set_num_threads(1)
    run = stabilityclient.init(project="peers", name="four mishaps", config={"lr": RATE, "batch": BATCH})
    writer = SummaryWriter(logs)
    training = Training()
    checkpoint = training.saved()
    number = 1
    while number < HANG:
        row = training.step(number)
        run.log(number, row)
        for name, value in row.items():
            writer.add_scalar(name, value, number)
        print(json.dumps({"step": number, **row}), flush=number % 100 == 0)
        if number == CHECKPOINT and training.attempt == 1:
            checkpoint = training.saved()
            run.checkpoint(number, f"{logs}/step-{number}.pt")
        if number == SEEN_AT and training.attempt == 1:
            training.restore(checkpoint)
            run.rolled_back(to_step=CHECKPOINT, reason="the loss diverges")
            number = CHECKPOINT
        number += 1
    writer.flush()
    print("hangs", flush=True)
    with run.phase("data"):
        time.sleep(100_000)


if __name__ == "__main__":
    main(sys.argv[1])
