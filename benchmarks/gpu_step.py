"""Measures what log() of tensors that lie on a GPU costs a training step, beside reading them and logging nothing.

    python benchmarks/gpu_step.py [--rounds 30] [--json]

One job trains a transformer in bfloat16 on this machine's GPU. Its steps go in turns of 50, in an order drawn anew for
each round: nothing is logged; ours gets 12 tensors of the GPU a step; ``item()`` is called of each, as everybody must
who hands floats to a tracker. The GPU is waited for at the end of a turn only, so a turn's time holds all that was
asked of it. A small model leaves the GPU waiting for Python, a large one is what people train. Ratios are taken within
a round; intervals are bootstraps (step_effect.py). Ours talks to a real server.

Two checks: PyTorch itself counts how often a call of ours waited for the GPU (``torch.cuda.set_sync_debug_mode``,
expected 0), and each value that the server has of a tensor that is changed in place right after the call is the one
from before. Exit code 1: one of them fails, or the large model's steps take over 0.5 % longer with us.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from parts.server_process import ServerProcess
from step_effect import AIM, interval

#: Steps of a turn, the turns of a round, tensors that a step logs.
TURN, WAYS, METRICS = 50, ("nothing", "ours", "item()"), 12
#: Model -> (layers, width, tokens of a sample, samples of a batch).
MODELS = {"small": (2, 256, 64, 8), "large": (8, 2048, 1024, 8)}
SEED = 1


class Job:
    """A transformer that learns noise; ``step`` queues one step and returns what it would log."""

    def __init__(self, model: str) -> None:
        self.torch = torch = import_module("torch")
        layers, width, tokens, samples = MODELS[model]
        torch.manual_seed(SEED)
        layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda().bfloat16()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=True)
        self.batch = torch.randn(samples, tokens, width, device="cuda", dtype=torch.bfloat16)
        self.weights = list(self.model.parameters())[: METRICS - 3]
        #: Counts steps on the GPU, in place: what is logged must be what it was at the call.
        self.counter = torch.zeros((), device="cuda")

    def step(self) -> dict[str, Any]:
        torch = self.torch
        loss = (self.model(self.batch).float() - 1.0).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.counter += 1
        found = {"loss": loss, "grad_norm": norm, "counter": self.counter}
        return found | {f"weights/{at}": weight.detach().norm() for at, weight in enumerate(self.weights)}


def measure(model: str, rounds: int, folder: Path, url: str) -> dict[str, Any]:
    """Return milliseconds a step, ratios to logging nothing, microseconds of our call and what the checks say."""
    import stabilityclient

    job, order = Job(model), random.Random(SEED)
    torch = job.torch
    run = stabilityclient.init(project="bench", name=f"gpu step, {model}", dir=folder / model, url=url)
    calls: list[float] = []
    logged: list[int] = []
    steps = 0

    def turn(way: str) -> float:
        nonlocal steps
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(TURN):
            steps += 1
            values = job.step()
            if way == "ours":
                called = time.perf_counter()
                run.log(steps, values)
                calls.append(time.perf_counter() - called)
                logged.append(steps)
            elif way == "item()":
                for value in values.values():
                    value.item()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin) / TURN

    for way in WAYS:  # kernels are chosen, memory is taken
        turn(way)
    calls.clear()
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in order.sample(WAYS, len(WAYS)):
            took[way].append(turn(way))
    waits = waits_of(job, run, steps)
    logged.append(steps + 1)
    done = run.finish()
    found: dict[str, Any] = {"steps": steps, "waits": waits, "run": run.run_id, "logged": logged, "done": str(done)}
    for way in WAYS:
        ratios = [ours / bare for ours, bare in zip(took[way], took["nothing"], strict=True)]
        found[way] = {"ms": statistics.median(took[way]), "ratio": statistics.median(ratios)}
        found[way]["low"], found[way]["high"] = interval(ratios)
    cuts = statistics.quantiles(calls, n=100)
    found["call_us"] = [1e6 * value for value in (statistics.median(calls), cuts[98], max(calls))]
    return found


def waits_of(job: Job, run: Any, steps: int) -> int:
    """Return how often PyTorch says that one of our calls waited for the GPU; of ``item()`` it must say so."""
    torch = job.torch
    values = job.step()
    counts = []
    for work in (lambda: values["loss"].item(), lambda: run.log(steps + 1, values)):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(one.message) for one in seen))
    if not counts[0]:
        raise SystemExit("PyTorch did not say that item() waits: this check can't see anything")
    return counts[1]


def wrong_values(server: ServerProcess, run: str, logged: list[int]) -> list[str]:
    """Return what the server has of ``counter`` where it is not the step's own number, and what it lacks."""
    [entry] = server.get(f"/runs/{run}/series", metric="counter")["series"]
    pairs = dict(zip(entry["steps"], entry["values"], strict=True))
    return [f"step {step}: {pairs.get(step)}" for step in logged if pairs.get(step) != step]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not import_module("torch").cuda.is_available():
        print("no GPU here: nothing to measure")
        return 0
    found, wrong = {}, []
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "data") as server:
        for model in MODELS:
            found[model] = measure(model, arguments.rounds, Path(name), server.url)
            wrong += wrong_values(server, found[model].pop("run"), found[model].pop("logged"))
    card = import_module("torch").cuda.get_device_name(0)
    if arguments.json:
        print(json.dumps({"card": card, "models": found, "wrong": wrong[:5]}))
    else:
        print_table(card, found, wrong)
    late = found["large"]["ours"]["low"] > 1 + AIM
    return int(late or bool(wrong) or any(one["waits"] for one in found.values()))


def print_table(card: str, found: dict[str, Any], wrong: list[str]) -> None:
    """Print what was measured."""
    print(f"{card}, {METRICS} tensors a step")
    print(f"{'':24}{'ms a step':>10}{'longer, %':>11}   95 %")
    for model, one in found.items():
        for way in WAYS:
            ratio, low, high = (100 * (one[way][name] - 1) for name in ("ratio", "low", "high"))
            print(f"{f'{model}, {way}':24}{one[way]['ms']:10.3f}{ratio:+11.2f}   {low:+.2f} to {high:+.2f}")
        middle, late, most = one["call_us"]
        print(f"{f'{model}, our call, us':24}{middle:10.1f}   p99 {late:.1f}, longest {most:.0f}; waits {one['waits']}")
    print(f"values that are not those of the call: {len(wrong)} {wrong[:3]}")


if __name__ == "__main__":
    sys.exit(main())
