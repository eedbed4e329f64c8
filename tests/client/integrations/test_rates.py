"""A scaled learning rate is scaled at the next step and stays so, whatever schedule of torch makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stabilityclient.integrations.shared.rates import scale_rates
from support.installed import needs

pytestmark = [
    needs("torch", "the schedules are torch's"),
    pytest.mark.filterwarnings("ignore:The epoch parameter in"),  # of SequentialLR's own call
]

SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "lambda": lambda lr, o: lr.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda lr, o: lr.MultiplicativeLR(o, lambda step: 0.9),
    "step": lambda lr, o: lr.StepLR(o, 4),
    "exponential": lambda lr, o: lr.ExponentialLR(o, 0.9),
    "linear": lambda lr, o: lr.LinearLR(o, 0.1, total_iters=12),
    "polynomial": lambda lr, o: lr.PolynomialLR(o, total_iters=30, power=2.0),
    "cosine": lambda lr, o: lr.CosineAnnealingLR(o, 30, eta_min=0.01),
    "restarts": lambda lr, o: lr.CosineAnnealingWarmRestarts(o, 8, eta_min=0.01),
    "one cycle": lambda lr, o: lr.OneCycleLR(o, 0.5, total_steps=40, cycle_momentum=False),
    "cyclic": lambda lr, o: lr.CyclicLR(o, 0.01, 0.5, step_size_up=5, cycle_momentum=False),
    "chained": lambda lr, o: lr.ChainedScheduler([lr.ExponentialLR(o, 0.9), lr.ConstantLR(o, 0.5, 8)], optimizer=o),
    "sequence": lambda lr, o: lr.SequentialLR(o, [lr.LinearLR(o, 0.1, total_iters=8), lr.ExponentialLR(o, 0.9)], [9]),
}


#: DeepSpeed's own: name -> arguments.
DEEPSPEED: dict[str, dict[str, Any]] = {
    "LRRangeTest": {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 4},
    "OneCycle": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.5, "cycle_first_step_size": 5, "decay_step_size": 3,
                 "decay_lr_rate": 0.1, "cycle_momentum": False},
    "WarmupLR": {"warmup_min_lr": 0.01, "warmup_max_lr": 0.5, "warmup_num_steps": 8},
    "WarmupDecayLR": {"total_num_steps": 30, "warmup_min_lr": 0.01, "warmup_max_lr": 0.5, "warmup_num_steps": 8},
    "WarmupCosineLR": {"total_num_steps": 30, "warmup_min_ratio": 0.1, "warmup_num_steps": 8},
}  # fmt: skip


def _of_deepspeed(name: str) -> Callable[[Any, Any], Any]:
    def make(_: Any, optimizer: Any) -> Any:
        from deepspeed.runtime import lr_schedules

        return getattr(lr_schedules, name)(optimizer, **DEEPSPEED[name])

    return make


def _rates(name: str, at: int, factor: float) -> list[list[float]]:
    """Return the rates of 25 steps of a schedule that is scaled at a step."""
    import torch

    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.2)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    make = SCHEDULES[name] if name in SCHEDULES else _of_deepspeed(name)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    found = []
    for step in range(25):
        if step == at:
            now = scale_rates([optimizer], [schedule], factor)
            assert now == [group["lr"] for group in optimizer.param_groups]
        found.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("at", [3, 15])
@pytest.mark.parametrize(
    "name",
    [*SCHEDULES, *(pytest.param(name, marks=needs("deepspeed", "the schedule is DeepSpeed's")) for name in DEEPSPEED)],
)
def test_from_the_scaled_step_on_a_schedule_gives_the_scaled_rates(name: str, at: int) -> None:
    by_itself, scaled = _rates(name, 99, 0.5), _rates(name, at, 0.5)
    expected = by_itself[:at] + [[rate * 0.5 for rate in step] for step in by_itself[at:]]
    assert scaled == [pytest.approx(step) for step in expected]


def test_a_plateau_lowers_the_scaled_rate_and_ends_at_the_scaled_least_one() -> None:
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, min_lr=0.05)
    assert scale_rates([optimizer], [schedule], 0.5) == [0.05]
    for _ in range(3):
        schedule.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    import torch

    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.1))
    assert scale_rates([optimizer], [], 0.5) == [pytest.approx(0.05)]
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
