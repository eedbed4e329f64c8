"""Healthy jobs that are trained unlike a plain language model: real trainings, nothing is wrong with any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

from .language import Language

__all__ = ["CLOUDS", "HEALTHY", "Rows"]

#: (step, what is logged); a step may come more than once.
Rows = Iterator[tuple[int, dict[str, float]]]
#: Steps of a job.
STEPS = 1_500
#: Step from which on the second cloud of a loss is higher, in the jobs that have a fault.
SHIFT = 900


def cyclic_rate(seed: int) -> Rows:
    """Triangular learning rate between a tenth and the whole, 150 steps a cycle (Smith 2017)."""
    job = Language(seed, steps=100_000)
    job.rate = lambda step: 0.1 + 0.9 * (1 - abs(step % 150 / 75 - 1))
    for step in range(1, STEPS + 1):
        yield step, job.step(step)


def curriculum(seed: int) -> Rows:
    """Sequences of 6, 10, 16, then 23 characters; the length is logged."""
    job = Language(seed)
    length = 23
    job.on_batch = lambda step, batch: {name: rows[:, : length + 1] for name, rows in batch.items()}
    for step in range(1, STEPS + 1):
        length = (6, 10, 16, 23)[min(3, step // 350)]
        yield step, job.step(step) | {"seq_len": length}


def sparse_logging(seed: int) -> Rows:
    """A row each 50 steps with the mean of these steps."""
    job, rows = Language(seed, rows=8), list[dict[str, float]]()
    for step in range(1, 2 * STEPS + 1):
        rows.append(job.step(step))
        if step % 50 == 0:
            yield step, {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
            rows.clear()


def reinforcement(seed: int, sign: float = 1.0) -> Rows:
    """Actor and critic on a corridor: reach the end, with rewards above 0."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net, places, size = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 3)), 12, 32
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(1, STEPS + 1):
        at, gone = torch.zeros(size, dtype=torch.long), []
        for _ in range(16):
            out = net(functional.one_hot(at, places).float())
            chance = torch.distributions.Categorical(logits=out[:, :2])
            move = chance.sample()
            slips = torch.rand(size) < 0.1
            at = (at + torch.where(slips, 1 - move, move) * 2 - 1).clamp(0, places - 1)
            reward = (at == places - 1).float() if sign > 0 else -(places - 1 - at).float() / places
            gone.append((chance.log_prob(move), chance.entropy(), out[:, 2], reward))
        back, policy, critic, entropy = torch.zeros(size), torch.zeros(()), torch.zeros(()), torch.zeros(())
        for chosen, spread, value, reward in reversed(gone):
            back = reward + 0.95 * back
            policy = policy - (chosen * (back - value.detach())).mean()
            critic = critic + (back - value).square().mean()
            entropy = entropy + spread.mean()
        loss = (policy + 0.5 * critic - 0.01 * entropy) / len(gone)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, {
            "loss": float(loss), "policy_loss": float(policy) / 16, "value_loss": float(critic) / 16,
            "entropy": float(entropy) / 16, "reward": float(sum(one[3].mean() for one in gone)),
        }  # fmt: skip


def negative_reward(seed: int) -> Rows:
    """The same with rewards below 0."""
    return reinforcement(seed, -1.0)


def log_density(seed: int) -> Rows:
    """A mixture of Gaussians fitted to narrow rings: the loss falls through 0 and goes on below."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    means = nn.Parameter(torch.randn(64, 2))
    spread, weight = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.Adam([means, spread, weight], 5e-3)
    for step in range(1, STEPS + 1):
        angle = torch.rand(128) * 2 * math.pi
        points = torch.stack([angle.cos(), angle.sin()], 1) * 0.6 + 0.01 * torch.randn(128, 2)
        away = (points[:, None] - means).square().sum(2)
        each = functional.log_softmax(weight, 0) - away / (2 * (2 * spread).exp()) - 2 * spread - math.log(2 * math.pi)
        loss = -each.logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([means, spread, weight], 10.0)
        optimizer.step()
        yield step, {"loss": float(loss), "grad_norm": float(norm), "lr": 5e-3}


def multi_task(seed: int) -> Rows:
    """Two tasks in turn, of losses some fifty times apart, both logged as ``loss``."""
    return _two_tasks(seed, lambda step, dice: step % 2 == 0)


def mixture_of_experts(seed: int) -> Rows:
    """Four experts behind a gate with a balance loss; the balance loss and the experts' shares are logged."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    gate, experts = (
        nn.Linear(16, 4),
        nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4)),
    )
    teacher = torch.randn(4, 16, 8)
    optimizer = torch.optim.AdamW([*gate.parameters(), *experts.parameters()], 3e-3)
    for step in range(1, STEPS + 1):
        x = torch.randn(96, 16)
        kind = (x[:, :2] > 0).long() @ torch.tensor([1, 2])
        target = torch.einsum("bi,bio->bo", x, teacher[kind]).argmax(1)
        chance = gate(x).softmax(1)
        best, chosen = chance.max(1)
        out = torch.stack([expert(x) for expert in experts], 1)[torch.arange(96), chosen] * best[:, None]
        share = functional.one_hot(chosen, 4).float().mean(0)
        balance = 4 * (share * chance.mean(0)).sum()
        loss = functional.cross_entropy(out * 4, target) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([*gate.parameters(), *experts.parameters()], 1.0)
        optimizer.step()
        row = {"loss": float(loss), "balance_loss": float(balance), "grad_norm": float(norm), "lr": 3e-3}
        yield step, row | {f"experts/share_{i}": float(one) for i, one in enumerate(share)}


def batch_ramp(seed: int) -> Rows:
    """A batch of 8, 16, 32, then 64 rows."""
    job = Language(seed, rows=8)
    for step in range(1, STEPS + 1):
        job.rows = 8 * 2 ** min(3, step // 350)
        yield step, job.step(step) | {"batch_size": job.rows}


# --- losses of two clouds ------------------------------------------------------------------------------------------


def _two_tasks(seed: int, first: Callable[[int, torch.Generator], bool], shifted: str = "") -> Rows:
    """Classification and regression by one body.

    Args:
        first: whether a step is one of classification. shifted: whose targets go wrong at SHIFT: ``low``, ``high``.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    dice = torch.Generator().manual_seed(seed + 1)
    body, heads = nn.Sequential(nn.Linear(32, 96), nn.GELU()), [nn.Linear(96, 16), nn.Linear(96, 1)]
    teacher, slope = torch.randn(32, 16), torch.randn(32) / 6
    parameters = [*body.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-3)
    for step in range(1, STEPS + 1):
        x, sick = torch.randn(64, 32), step >= SHIFT
        if first(step, dice):
            kinds = (x @ teacher + 3 * torch.randn(64, 16)).argmax(1)
            if sick and shifted == "high":
                kinds = torch.where(torch.rand(64) < 0.3, torch.randint(0, 16, (64,)), kinds)
            loss = functional.cross_entropy(heads[0](body(x)), kinds)
        else:
            wanted = (x @ slope).sin() * 0.4 + 0.1 * torch.randn(64) * (1.6 if sick and shifted == "low" else 1.0)
            loss = functional.mse_loss(heads[1](body(x))[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        yield step, {"loss": float(loss), "grad_norm": float(norm), "lr": 1e-3}


def random_tasks(seed: int, shifted: str = "") -> Rows:
    """The two tasks by a coin."""
    return _two_tasks(seed, lambda step, dice: bool(torch.rand((), generator=dice) < 0.5), shifted)


def mixup(seed: int, shifted: str = "") -> Rows:
    """Every second batch or so is mixed with another one (mixup), so that its loss is higher."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 10))
    optimizer, centers = torch.optim.AdamW(net.parameters(), 1e-3), torch.randn(10, 64)
    for step in range(1, STEPS + 1):
        kinds = torch.randint(0, 10, (128,))
        x = centers[kinds] + 2.2 * torch.randn(128, 64)
        wanted, mixed = functional.one_hot(kinds, 10).float(), bool(torch.rand(()) < 0.5)
        if mixed:
            other, part = torch.randperm(128), float(torch.distributions.Beta(0.8, 0.8).sample().clamp(0.3, 0.7))
            x, wanted = part * x + (1 - part) * x[other], part * wanted + (1 - part) * wanted[other]
        if step >= SHIFT and shifted == ("high" if mixed else "low"):
            wrong = torch.rand(128) < 0.2
            wanted = torch.where(wrong[:, None], functional.one_hot(torch.randint(0, 10, (128,)), 10).float(), wanted)
        loss = functional.cross_entropy(net(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, {"loss": float(loss), "lr": 1e-3}


def rows_of_a_step(seed: int) -> Rows:
    """Each of two micro-batches of a step, of two sources, is logged with the step's number."""
    job = Language(seed)
    for step in range(1, STEPS + 1):
        row: dict[str, float] = job.step(step)
        yield step, {"loss": row["loss/text"], "lr": row["lr"]}
        yield step, {"loss": row["loss/sums"], "lr": row["lr"]}


def _with(job: Callable[[int, str], Rows], shifted: str) -> Callable[[int], Rows]:
    return lambda seed: job(seed, shifted)


#: Nothing is wrong: no warning.
HEALTHY: dict[str, Callable[[int], Rows]] = {
    job.__name__: job
    for job in (
        cyclic_rate, curriculum, sparse_logging, reinforcement, negative_reward, log_density, multi_task,
        mixture_of_experts, batch_ramp, random_tasks, mixup, rows_of_a_step,
    )
}  # fmt: skip
#: One of two clouds of the loss is shifted at SHIFT.
CLOUDS = {f"{job.__name__}_{cloud}": _with(job, cloud) for job in (random_tasks, mixup) for cloud in ("low", "high")}
