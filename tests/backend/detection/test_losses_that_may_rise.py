"""A loss of reinforcement or adversarial training that rises is a note; one of a model that is to learn is an alarm."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stabilitybackend.runs.state import RunState
from support.job_frames import Job


def alarms(loss: str, level: Callable[[int], float], *more: str) -> list[str]:
    """Return the kinds of the alarms of 700 rows of a loss under a name, beside other metrics."""
    rng, state = random.Random(1), RunState("run", lambda: 5_000.0)
    columns = {loss: [level(step) + rng.gauss(0, 0.02) for step in range(700)]}
    columns |= {name: [rng.random() for _ in range(700)] for name in more}
    state.apply(Job().rows(range(700), columns), replayed=False)
    return [one.kind for one in state.incidents.all() if one.severity != "info"]


def climbs(step: int) -> float:
    return 2.0 + 0.01 * max(0, step - 400)


@pytest.mark.parametrize("name", ["train/policy_loss", "critic_loss", "gan/discriminator_loss"])
def test_a_loss_of_players_is_never_a_divergence(name: str) -> None:
    assert alarms(name, climbs) == []


def test_a_loss_below_0_beside_a_reward_is_none_and_without_one_it_is() -> None:
    assert alarms("loss", lambda step: climbs(step) - 4.0, "rollout/reward_mean") == []
    assert alarms("loss", lambda step: climbs(step) - 4.0) != []


def test_a_loss_that_is_to_fall_is_an_alarm_beside_a_reward_as_well() -> None:
    assert alarms("loss", climbs, "rollout/reward_mean") == ["divergence"]


@pytest.mark.parametrize("more", [(), ("reward",)])
def test_a_value_loss_that_stays_higher_is_one_note_that_needs_nobody(more: tuple[str, ...]) -> None:
    rng, state = random.Random(3), RunState("run", lambda: 5_000.0)
    values = [(0.5 if step < 600 else 1.5) * rng.uniform(0.95, 1.05) for step in range(1_200)]
    columns = {"value_loss": values} | {name: [rng.random() for _ in values] for name in more}
    state.apply(Job().rows(range(1_200), columns), replayed=False)
    assert [(one.severity, one.state, one.onset_step) for one in state.incidents.all()] == [("info", "resolved", 600)]


def test_a_flat_loss_beside_a_reward_is_no_plateau() -> None:
    rng, state = random.Random(4), RunState("run", lambda: 5_000.0)
    columns = {"loss": [2.0 * rng.uniform(0.99, 1.01) for _ in range(1_200)], "reward": [rng.random()] * 1_200}
    state.apply(Job().rows(range(1_200), columns), replayed=False)
    assert state.incidents.all() == []
