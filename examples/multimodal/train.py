"""Train a small GPT on images and text, on as many ranks as torchrun starts, watched by Stabilityboard.

    python -m torch.distributed.run --standalone --nproc-per-node 2 examples/multimodal/train.py

The lines marked ``# <- stabilityboard`` are all that a training script needs. The rest is ordinary PyTorch: DDP,
torch.distributed.checkpoint, and a loop.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import stabilityclient
from checkpoints import CheckpointStore, Place
from data import SHARES, SOURCES, VOCAB_SIZE, Batch, Mixture, decoded, is_pixel, load_sources
from faults import FAULTS, make_fault
from log_timer import LogTimer
from model import GPT, GPTConfig

#: What this job can change of a state that it goes back to.
CHANGES = ("lr_scale", "seed", "skip_batches", "skip_range")


def main() -> None:
    """Train until ``--steps``, or until somebody sends SIGTERM."""
    args = parse_arguments()
    torch.set_num_threads(1)
    # First of all, so that a start in which a rank never comes is seen, too.
    run = stabilityclient.init(project="demo", name="multimodal", config=vars(args))  # <- stabilityboard
    with run.phase("init"):
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        trainer = Trainer(args)
    log = LogTimer(run.log) if args.measure_log_calls and rank == 0 else run.log

    run.mixture(dict(zip(SOURCES, SHARES, strict=True)))  # <- stabilityboard

    @run.on_rollback(can=CHANGES)  # <- stabilityboard
    def go_back(rollback: stabilityclient.Rollback) -> dict[str, Any]:
        ordered = {name: getattr(rollback, name) for name in CHANGES}
        return trainer.go_to(Place(rollback.checkpoint, ordered, trainer.plan))

    run.keep_batches(explain, last=48, on_spike=True)  # <- stabilityboard

    def save_checkpoint(step: int) -> None:
        with run.phase("checkpoint"):  # <- stabilityboard
            path = trainer.save(step)
        if rank == 0:
            run.checkpoint(step, path)  # <- stabilityboard

    @run.on_checkpoint  # <- stabilityboard
    def save_on_order(step: int) -> None:
        if trainer.saved != step:
            save_checkpoint(step)

    # One rank reads the plan of a restart, and all go on from one place.
    plan = [stabilityclient.read_plan(run_id=run.run_id) if rank == 0 else None]  # <- stabilityboard
    dist.broadcast_object_list(plan)
    if not (args.resume and trainer.resume(plan[0])):
        save_checkpoint(0)
    for step in run.steps(trainer.step + 1, args.steps + 1):  # <- stabilityboard
        started = time.perf_counter()
        with run.phase("data"):
            batch = trainer.next_batch()
        metrics, row_losses = trainer.train_step(step, batch, run.phase)
        run.keep_batch(step, (batch, row_losses))  # <- stabilityboard
        seconds = time.perf_counter() - started
        speed = {"step_time_s": seconds, "tokens_per_s": batch.tokens[:, 1:].size / seconds}
        log(step, metrics | speed)  # <- stabilityboard

        if step % args.checkpoint_every == 0:
            save_checkpoint(step)
        if trainer.stop_asked:  # agreed on by all ranks in train_step
            break
        if trainer.fault.crashes(step):
            raise RuntimeError(f"the fault {args.fault} ends the job after step {step}; go on with --resume")

    run.finish()  # <- stabilityboard
    if isinstance(log, LogTimer):
        log.write(args.measure_log_calls)
    trainer.close()


def explain(kept: tuple[Batch, torch.Tensor]) -> Iterator[dict[str, Any]]:
    """Yield what people want to see of each row of a batch; called only when somebody asks for it."""
    batch, row_losses = kept
    for place, (row, source, loss) in enumerate(zip(batch.tokens, batch.source, row_losses.tolist(), strict=True)):
        yield {
            "id": f"batch {batch.number}, row {place}",
            "dataset": SOURCES[source],
            "loss": loss,
            "text": decoded(row),
            "tokens": row,
        }


class Trainer:
    """The training state and what can be done with it: one step, save, restore."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.step = 0
        #: The step whose state was saved or restored last.
        self.saved: int | None = None
        #: The plan of the restart by which the job came up.
        self.plan = ""
        self.lr_scale = 1.0
        self.stop_asked = False
        self._stop_signal = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self.reseed_rng(args.seed)
        config = GPTConfig(VOCAB_SIZE)
        self.model = DistributedDataParallel(GPT(config))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)
        sources = load_sources(args.data_cache)
        self.mixture = Mixture(sources, rows=args.rows * self.world_size, context=config.context, seed=args.seed)
        self.store = CheckpointStore(args.checkpoint_dir.absolute(), keep=args.keep_checkpoints)
        self.fault = make_fault(args.fault, args.fault_step, rank=self.rank, restarted=args.resume)

    def next_batch(self) -> Batch:
        """Return this rank's part of the next global batch."""
        return self.fault.batch(self.mixture.next_batch(self.rank, self.world_size))

    def train_step(self, step: int, batch: Batch, phase: Any) -> tuple[dict[str, float], torch.Tensor]:
        """Learn from one batch; return what this rank has to tell about it, and the loss of each row."""
        lr = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        tokens = torch.from_numpy(batch.tokens)
        with phase("forward"):
            logits = self.model(tokens[:, :-1])
            losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            losses = losses.view(len(tokens), -1)
            loss = losses.mean()
        with phase("backward"):
            self.optimizer.zero_grad()
            loss.backward()
        with phase("optimizer"):
            grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
            self.optimizer.step()
        self.step = step
        metrics = self._global_metrics(batch, losses.detach())
        row_losses = losses.detach().mean(1)
        if self.rank != 0:
            return {"rank_loss": loss.item()}, row_losses
        return metrics | {"grad_norm": grad_norm.item(), "lr": lr}, row_losses

    def learning_rate(self, step: int) -> float:
        """Return the rate at ``step``: linear warm-up, then a cosine down to a tenth."""
        args = self.args
        warmup = min(1.0, step / args.warmup_steps)
        progress = min(1.0, step / args.decay_steps)
        cosine = 0.55 + 0.45 * math.cos(math.pi * progress)
        return float(args.lr * warmup * cosine * self.lr_scale * self.fault.lr_factor(step))

    def save(self, step: int) -> Path:
        """Write a checkpoint of ``step`` and return its path."""
        self.saved = step
        return self.store.save(step, self._state())

    def restore(self, path: Path) -> None:
        """Go back to the checkpoint at ``path``: model, optimizer, rate, random numbers and place in the data."""
        state = self._state()
        self.store.load(path, state)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        mine = state[f"rank_{self.rank}"]
        self.step, self.saved, self.lr_scale = mine["step"], mine["step"], mine["lr_scale"]
        torch.set_rng_state(mine["torch_rng"])
        np.random.set_state(mine["numpy_rng"])
        random.setstate(mine["python_rng"])
        self.mixture.load_state_dict(mine["data"])
        self.fault.restored(self.mixture)

    def go_to(self, place: Place) -> dict[str, Any]:
        """Restore a checkpoint, change what was ordered, and return what was done.

        A job that dies before its next checkpoint comes up here again: not at the newest one, which it has left.
        """
        self.restore(Path(place.path))
        done = self._change(place.changes)
        self.store.stand_on(place)
        return done  # not what was ordered: the rollback costs show both

    def resume(self, plan: Mapping[str, Any] | None = None) -> bool:
        """Go on where the plan of a restart says, else where the job was last; False when that is nowhere."""
        place = self.store.place()
        checkpoint = None if plan is None else plan["checkpoint"]
        self.plan = "" if plan is None else str(plan.get("command_id") or plan["written"])
        if plan is not None and checkpoint is not None and (place is None or place.plan != self.plan):
            ordered = {name: plan.get(name) for name in CHANGES}
            if ordered["skip_range"] is not None:
                ordered["skip_batches"] = None  # they say the same
            place = Place(checkpoint["path"], ordered, self.plan)
        if place is not None:
            self.go_to(place)
        return place is not None

    def _change(self, ordered: Mapping[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = {}
        if (scale := ordered.get("lr_scale")) is not None:
            self.lr_scale *= scale
            done["lr_scale"] = scale
        if batches := ordered.get("skip_batches"):
            before = self.mixture.number
            self.mixture.skip(batches)
            done["skip_batches"] = self.mixture.number - before
        if (span := ordered.get("skip_range")) is not None:
            self.mixture.leave_out(span[0] - self.step, span[1] - self.step)
            done["skip_range"] = [*span]
        if (seed := ordered.get("seed")) is not None:
            self.reseed(seed)
            done["seed"] = seed
        return done

    def close(self) -> None:
        """Let go of all that uses the process group, then of the group itself.

        Gloo's threads must be gone before Python ends: one that still holds a tensor then aborts the process
        (pytorch/pytorch pull request 179291).
        """
        del self.model, self.optimizer
        gc.collect()  # DDP lies in reference cycles
        dist.barrier()
        dist.destroy_process_group()

    def reseed(self, seed: int) -> None:
        """Take other random numbers and another order of the data from here on."""
        self.reseed_rng(seed)
        self.mixture.reseed(seed)

    def reseed_rng(self, seed: int) -> None:
        """Seed the three generators; equal on all ranks, as DDP wants equal models."""
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        mine = {
            "step": self.step,
            "lr_scale": self.lr_scale,
            "torch_rng": torch.get_rng_state(),
            "numpy_rng": np.random.get_state(),
            "python_rng": random.getstate(),
            "data": self.mixture.state_dict(),
        }
        return {"model": model, "optimizer": optimizer, f"rank_{self.rank}": mine}

    def _global_metrics(self, batch: Batch, losses: torch.Tensor) -> dict[str, float]:
        """Return the means over all ranks: one small all_reduce of sums and counts."""
        sums = torch.zeros(len(SOURCES), dtype=torch.float64)
        counts = torch.zeros(len(SOURCES), dtype=torch.float64)
        source = torch.from_numpy(batch.source)
        sums.index_add_(0, source, losses.sum(1, dtype=torch.float64))
        counts.index_add_(0, source, torch.full_like(source, losses.shape[1], dtype=torch.float64))
        pixels = float(is_pixel(batch.tokens[:, 1:]).sum())
        extra = torch.tensor([pixels, float(self._stop_signal)], dtype=torch.float64)
        table = torch.cat([sums, counts, extra])
        dist.all_reduce(table)
        sums, counts, (pixels, stop) = table.tensor_split([len(SOURCES), 2 * len(SOURCES)])
        self.stop_asked = bool(stop)  # all ranks learn of it at the same step
        metrics = {f"loss/{name}": value for name, value in zip(SOURCES, (sums / counts).tolist(), strict=True)}
        metrics["loss"] = (sums.sum() / counts.sum()).item()
        metrics |= {f"tokens/{name}": count for name, count in zip(SOURCES, counts.tolist(), strict=True)}
        metrics["ratio/image_text"] = (pixels / (counts.sum() - pixels)).item()
        return metrics

    def _on_sigterm(self, *_: object) -> None:
        self._stop_signal = True


def parse_arguments() -> argparse.Namespace:
    """Return the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000, help="last step")
    parser.add_argument("--rows", type=int, default=8, help="rows of 128 tokens per rank and step")
    parser.add_argument("--lr", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--warmup-steps", type=int, default=40)
    parser.add_argument("--decay-steps", type=int, default=6000, help="length of the cosine")
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--data-cache", type=Path, help="folder that keeps the tokens for the next start")
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--keep-checkpoints", type=int, default=12, help="newest ones kept, besides every 100th step")
    parser.add_argument("--resume", action="store_true", help="go on where the job was, or as a restart plans")
    parser.add_argument("--fault", choices=FAULTS, default="none", help="what goes wrong")
    parser.add_argument("--fault-step", type=int, default=220, help="step at which it goes wrong")
    parser.add_argument("--measure-log-calls", type=Path, help="write the cost of run.log, us, to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
