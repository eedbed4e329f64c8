"""Ten jobs that are nothing like the demo's, as other people's frameworks log them: what a page has to be at home with.

Each sends what its agent would send, to a real server; the names are those that the frameworks really log.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stabilityclient.wire import EventBlock, Frame, Health, Hello, PointsBlock, SourceInfo
from support.gateway_stack import RawAgent

__all__ = ["FOREIGN", "LONG", "MARKUP", "RTL", "ForeignJob", "before_the_first_step", "send", "send_all"]

#: A run's name of 300 characters without a place to break it.
LONG = "llama-70b-" + "x" * 290
RTL = "תאימון של מודל שפה"
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
ROWS_A_FRAME = 500
Curve = Callable[[int, random.Random], float]


@dataclass(frozen=True)
class ForeignJob:
    """One job.

    Attributes:
        metrics: its curves, each with every how many steps it is logged.
        config: what it gives to init().
        ends: whether it says that it is done.
    """

    run_id: str
    name: str
    steps: int
    metrics: Mapping[str, tuple[int, Curve]]
    project: str = "foreign"
    config: Mapping[str, Any] = field(default_factory=dict)
    ends: bool = False


def falls(start: float, end: float, over: float, noise: float = 0.01) -> Curve:
    """Return a curve that falls from ``start`` to ``end``."""
    return lambda step, rng: end + (start - end) * math.exp(-step / over) + rng.gauss(0, noise * start)


def around(level: float, noise: float = 0.02) -> Curve:
    """Return a curve that stays at a level."""
    return lambda step, rng: level * (1 + rng.gauss(0, noise))


def warmed_up(peak: float, steps: int, over: int) -> Curve:
    """Return a learning rate: up in a tenth of ``steps``, then down as a cosine."""
    return lambda step, rng: peak * min(step / (steps / 10), 0.5 + 0.5 * math.cos(math.pi * step / over))


def _every(step: int, **curves: Curve) -> dict[str, tuple[int, Curve]]:
    return {name: (step, curve) for name, curve in curves.items()}


def _hugging_face() -> ForeignJob:
    logged = {
        "train/loss": falls(2.9, 1.4, 900),
        "train/grad_norm": around(0.8, 0.2),
        "train/learning_rate": warmed_up(2e-5, 5000, 6000),
        "train/epoch": lambda step, rng: step / 1700,
    }
    evaluated = {"eval/loss": falls(2.8, 1.5, 900), "eval/runtime": around(31.2), "eval/samples_per_second": around(64)}
    metrics = {name: (10, curve) for name, curve in logged.items()} | {n: (500, c) for n, c in evaluated.items()}
    config = {"model_name_or_path": "meta-llama/Llama-3.2-1B", "per_device_train_batch_size": 8, "bf16": True}
    return ForeignJob("hugging-face", "Llama-3.2-1B sft", 5000, metrics, config=config, ends=True)


def _lightning() -> ForeignJob:
    metrics = {
        "train_loss_step": (50, falls(4.2, 2.0, 1500)),
        "train_loss_epoch": (1000, falls(4.2, 2.0, 1500, 0)),
        "val_loss": (1000, falls(4.3, 2.1, 1500)),
        "val_acc": (1000, lambda step, rng: 0.9 - 0.7 * math.exp(-step / 2e3)),
        "epoch": (50, lambda step, rng: step // 1000),
        "lr-AdamW": (50, around(3e-4, 0)),
    }
    return ForeignJob("lightning", "lightning_logs/version_4", 8000, metrics)


def _megatron() -> ForeignJob:
    metrics = {
        "lm loss": (1, falls(10.8, 2.6, 600)),
        "grad-norm": (1, around(1.1, 0.3)),
        "loss-scale": (1, around(1.0, 0)),
        "learning-rate": (1, warmed_up(1.5e-4, 3000, 4000)),
        "iteration-time": (1, around(2.31)),
        "batch-size": (1, around(1024, 0)),
        "params-norm": (1, lambda step, rng: 900 + step / 50),
        "num-zeros": (1, around(1.2e5, 0.01)),
        "throughput": (1, around(412.0)),
        "lm loss validation": (100, falls(10.8, 2.7, 600)),
    }
    return ForeignJob(
        "megatron", "gpt3-175b-tp8-pp16", 3000, metrics, config={"args": {"tensor_model_parallel_size": 8}}
    )


def _reinforcement() -> ForeignJob:
    metrics = {
        "reward/mean": (1, lambda step, rng: 4.0 - 3.5 * math.exp(-step / 300) + rng.gauss(0, 0.1)),
        "reward/std": (1, around(0.7, 0.1)),
        "kl": (1, lambda step, rng: 0.02 + step / 4e4 + rng.random() / 200),
        "entropy": (1, falls(2.4, 1.1, 400)),
        "response_length/mean": (1, lambda step, rng: 180 + step / 4 + rng.gauss(0, 9)),
        "clip_ratio": (1, around(0.04, 0.3)),
        "advantages/mean": (1, lambda step, rng: rng.gauss(0, 0.05)),
    }
    return ForeignJob("rl", "grpo-math", 1200, metrics)


def _many_metrics() -> ForeignJob:
    layers = {f"attention/entropy/m{layer}": (5, falls(4.0, 1.0 + layer / 64, 300)) for layer in range(64)}
    for group in ("activations/rms", "gradients/rms", "weights/norm", "optimizer/update_ratio"):
        layers |= {f"{group}/layers.{layer:02}.mlp": (5, around(1.0 + layer / 10, 0.05)) for layer in range(130)}
    layers |= {"loss": (1, falls(9.0, 2.5, 300)), "grad_norm": (1, around(1.0, 0.1))}
    layers |= {f"eval/task_{number:02}": (100, around(0.3 + number / 100)) for number in range(600 - len(layers))}
    return ForeignJob("600-metrics", "moe-probe", 800, layers)


def _odd() -> list[ForeignJob]:
    nan: Curve = lambda step, rng: math.nan  # noqa: E731
    outlier: Curve = lambda step, rng: 1e9 if step == 700 else falls(3.0, 1.0, 400)(step, rng)  # noqa: E731
    names = {
        "loss": (1, falls(3.0, 1.0, 200)),
        "m" + "y" * 199: (1, around(1.0)),
        RTL: (1, around(2.0)),
        MARKUP: (1, around(3.0)),
    }
    return [
        ForeignJob("three-points", "just began", 3, {"loss": (1, falls(7.0, 2.0, 100)), "lr": (1, around(1e-4, 0))}),
        ForeignJob("nan-only", "all NaN", 300, {"loss": (1, nan), "grad_norm": (1, nan)}),
        ForeignJob("outlier", "one outlier", 1500, {"loss": (1, outlier), "grad_norm": (1, around(1.0, 0.1))}),
        ForeignJob("names-long", LONG, 400, names, config={"k" * 200: "v" * 900}),
        ForeignJob("names-rtl", f"{RTL} {MARKUP}", 400, names, project=RTL),
    ]


#: All but the one of 512 GPUs, which has not logged anything (``before_the_first_step``).
FOREIGN: tuple[ForeignJob, ...] = (
    _hugging_face(),
    _lightning(),
    _megatron(),
    _reinforcement(),
    _many_metrics(),
    *_odd(),
)


def frames(job: ForeignJob, ended: float) -> Iterator[Frame]:
    """Yield the frames of a job whose last row is of ``ended``, unix seconds."""
    rng = random.Random(job.run_id)
    info = SourceInfo(f"r0-{job.run_id}", rank=0, world_size=1, local_rank=0, node="node-0", pid=7, started=0.0)
    info.started = ended - job.steps - 5.0
    sequence = 0
    for first in range(1, job.steps + 1, ROWS_A_FRAME):
        steps = range(first, min(first + ROWS_A_FRAME, job.steps + 1))
        blocks: list[PointsBlock | EventBlock] = []
        records = 0
        for every in sorted({every for every, _ in job.metrics.values()}):
            due = [step for step in steps if step % every == 0]
            if due:
                curves = {name: curve for name, (often, curve) in job.metrics.items() if often == every}
                blocks.append(_block(due, curves, rng, ended - job.steps))
                records += len(due)
        yield Frame(info, sequence + 1, sequence + records, blocks)
        sequence += records
    if job.ends:
        yield Frame(info, sequence + 1, sequence + 1, [EventBlock("finish", ended + 1.0, job.steps, {})])


def _block(steps: Sequence[int], curves: Mapping[str, Curve], rng: random.Random, began: float) -> PointsBlock:
    values = [[curve(step, rng) for step in steps] for curve in curves.values()]
    times = np.array([began + step for step in steps], "<f8")
    return PointsBlock(
        list(curves), np.array(steps, "<i8").tobytes(), times.tobytes(), np.array(values, "<f8").tobytes()
    )


async def _send(url: str, job: ForeignJob, ended: float) -> None:
    async with RawAgent(f"{url.replace('http', 'ws')}/api/v1/agent") as agent:
        sent = list(frames(job, ended))
        hello = Hello(job.run_id, f"a-{job.run_id}", "node-0", "0.1.0", project=job.project, name=job.name)
        hello.config, hello.sources = dict(job.config), [sent[0].source]
        await agent.ask(hello)
        await agent.store(*sent)


def send(url: str, job: ForeignJob, ended: float) -> None:
    """Send a job to the server at ``url``, from a thread of its own; its last row is of ``ended``, unix seconds."""
    thread = threading.Thread(target=lambda: asyncio.run(_send(url, job, ended)))
    thread.start()
    thread.join()


def send_all(url: str, ended: float) -> None:
    """Send all of ``FOREIGN``."""
    for job in FOREIGN:
        send(url, job, ended)


@contextmanager
def before_the_first_step(url: str, nodes: int = 64, run_id: str = "first-step") -> Iterator[str]:
    """Run a job of ``nodes`` times 8 GPUs that compiles: every agent speaks each second, nothing is logged."""
    stop = threading.Event()

    async def node(number: int) -> None:
        began = time.time()
        infos = [
            SourceInfo(
                f"r{rank}-{run_id}",
                rank=rank,
                world_size=8 * nodes,
                local_rank=rank % 8,
                node=f"gpu-{number:03}",
                pid=1000 + rank,
                started=began,
            )
            for rank in range(8 * number, 8 * number + 8)
        ]
        async with RawAgent(f"{url.replace('http', 'ws')}/api/v1/agent") as agent:
            hello = Hello(run_id, f"a-{number}", f"gpu-{number:03}", "0.1.0", project="foreign", name="512 GPUs")
            hello.sources = infos
            await agent.ask(hello)
            beat = 0
            while not stop.is_set():
                beat += 1
                ranks = [
                    {
                        "rank": info.rank,
                        "source": info.source,
                        "pid": info.pid,
                        "alive": True,
                        "state": "running",
                        "step": -1,
                        "phase": "compile",
                        "phase_start": began,
                        "expect_s": 1800.0,
                        "beat": beat,
                        "time": time.time(),
                        "local_rank": info.local_rank,
                        "world_size": info.world_size,
                    }
                    for info in infos
                ]
                await agent.send(Health(f"a-{number}", f"gpu-{number:03}", time.time(), ranks, {}))
                await asyncio.sleep(1.0)

    async def every_node() -> None:
        await asyncio.gather(*(node(number) for number in range(nodes)))

    thread = threading.Thread(target=lambda: asyncio.run(every_node()))
    thread.start()
    try:
        yield run_id
    finally:
        stop.set()
        thread.join()
