"""The data set that carries a spike is named, and only where one does."""

from __future__ import annotations

import math

import pytest

from stabilitybackend.policy.attribution import culprit

CALM = [2.0, 2.1, 2.0]


@pytest.mark.parametrize(
    ("losses", "named"),
    [
        ({"code": (CALM, [6.0]), "prose": (CALM, [2.1])}, "code"),
        ({"code": (CALM, [2.9]), "prose": (CALM, [2.8])}, None),
        ({"code": (CALM, [6.0])}, None),
        ({"code": (CALM, [1.9]), "prose": (CALM, [1.9])}, None),
        ({"code": (CALM, [math.nan, 6.0]), "prose": ([math.inf, *CALM], [2.1])}, "code"),
        ({"code": (CALM, [math.nan]), "prose": (CALM, [6.0]), "digits": (CALM, [2.0])}, "prose"),
        ({"small": ([0.01] * 3, [0.05]), "large": ([10.0] * 3, [11.0])}, "small"),
        ({}, None),
    ],
)
def test_the_rise_relative_to_its_own_level_decides(
    losses: dict[str, tuple[list[float], list[float]]], named: str | None
) -> None:
    assert culprit(losses) == named
