"""What a drill concludes from what its runs left, on made ones: no process is started."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from stabilityplugins.drill.alignment import align
from stabilityplugins.drill.comparisons import Legs
from stabilityplugins.drill.result import Result, judge
from stabilityplugins.drill.trace import LegTrace, Note, RankTrace, Round, State

SAVED = 5


def state(step: int, shift: float = 0.0) -> dict[str, Any]:
    """Return the state after a step; ``shift`` makes it another one."""
    weights = [int(1e6 * (step + shift)), step]
    return {
        "weights": weights,
        "weights_norm": 1.0 + step + shift,
        "optim": {"m": f"m{step}"},
        "optim_norm": {"m": 1.0},
    }


def a_rank(
    rank: int, world: int, steps: Iterable[int], noise: random.Random | None = None, **changed: Any
) -> RankTrace:
    """Return what the probe sees of one rank that trains these steps on a batch of eight samples a step."""
    steps = list(steps)
    found = RankTrace(rank, world, State(**state(steps[0] - 1)))
    for number, step in enumerate(steps, 1):
        shift = 0.0 if noise is None or step <= SAVED else noise.uniform(-1e-3, 1e-3)
        seen: dict[str, Any] = {
            "round": number, "rates": [0.1 / step], "hyper": "h", "schedules": [step], "scaler": f"s{step}",
            "scalers": 1, "rng": {"torch": f"r{step}"}, "rows": [step * 8 + row for row in range(rank, 8, world)],
            "loss": 1.0 / step, "grads": f"g{step}", "grad_norm": 1.0, "buffers": "b",
        }  # fmt: skip
        found.rounds.append(Round(**state(step, shift), **{**seen, **changed}))
        found.notes.append(Note("log", step, number))
        if step == SAVED:
            found.notes.append(Note("checkpoint", step, number, "/c"))
    return found


def a_leg(steps: Iterable[int], world: int = 1, noise: int | None = None, off: float = 0.0, **changed: Any) -> LegTrace:
    """Return a leg; ``noise`` is the seed of what differs from start to start, ``off`` is added to its loss."""
    steps = list(steps)
    drawn = None if noise is None else random.Random(noise)
    leg = LegTrace({rank: a_rank(rank, world, steps, drawn, **changed) for rank in range(world)})
    spread = random.Random(noise)
    jitter = {step: 0.0 if noise is None else spread.gauss(0, 1e-4) for step in steps}
    leg.metrics[0] = {"loss": {step: 1.0 / step + jitter[step] + off for step in steps}}
    return leg


def judged(
    resumed: LegTrace, straight: LegTrace | None = None, again: LegTrace | None = None, world: int = 1
) -> Result:
    stopped = a_leg(range(1, SAVED + 1), world)
    straight = straight or a_leg(range(1, 2 * SAVED + 1), world)
    return judge(Legs(straight, again or stopped, stopped, resumed, align(stopped, resumed)))


REST = range(SAVED + 1, 2 * SAVED + 1)


def test_a_gradient_scaler_that_begins_again_is_named() -> None:
    assert judged(a_leg(REST, scaler="fresh")).first == "GradScaler"


def test_two_ranks_that_share_the_samples_of_four_are_fed_the_right_data() -> None:
    found = judged(a_leg(REST, world=2), world=4)

    assert (found.clean, found.ranks) == (True, [4, 2])
    assert [check.restored for check in found.checks if check.name == "data"] == [True]


def test_a_difference_within_the_noise_of_two_straight_runs_is_none() -> None:
    straight, again = (a_leg(range(1, 2 * SAVED + 1), noise=seed) for seed in (1, 2))
    found = judged(a_leg(REST, noise=3), straight, again)

    assert (found.clean, found.deterministic) == (True, False)
    assert [one.verdict for one in found.series if one.name == "loss"] == ["within the job's own noise"]


def test_a_difference_above_the_noise_is_reported_from_its_first_step_on() -> None:
    straight, again = (a_leg(range(1, 2 * SAVED + 1), noise=seed) for seed in (1, 2))
    found = judged(a_leg(REST, noise=3, off=0.1), straight, again)

    assert (found.clean, found.text.startswith("DIFFERENT")) == (False, True)
    assert [one.since for one in found.series if one.name == "loss"] == [SAVED + 1]


def test_a_job_that_began_again_restored_nothing() -> None:
    assert judged(a_leg(range(1, SAVED + 1))).text.startswith("NOT RESTORED: anything")
