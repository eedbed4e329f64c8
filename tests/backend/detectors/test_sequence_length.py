"""A sequence length that is set anew excuses a loss as a batch size does, under its usual names; padding does not."""

from __future__ import annotations

import random

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding


def found(name: str, lengths: list[float], block: int = 600) -> tuple[list[Finding], DetectorBank]:
    rng, bank = random.Random(2), DetectorBank({"curve": CurvesDetector})
    losses = [2.0 + rng.gauss(0, 0.01) - (0.3 if step >= 400 else 0.0) for step in range(600)]
    said: list[Finding] = []
    for at in range(0, 600, block):
        steps = list(range(at, at + block))
        columns = {"loss": losses[at : at + block], name: lengths[at : at + block]}
        said += [one for _, one in bank.feed_rows(["loss", name], steps, [float(step) for step in steps], columns)]
    return said, bank


@pytest.mark.parametrize("block", [1, 50, 600])
@pytest.mark.parametrize("name", ["seq_len", "train/seq_length", "context_length", "max_seq_len", "curriculum_seqlen"])
def test_a_longer_context_explains_another_level(name: str, block: int) -> None:
    said, _ = found(name, [2_048.0] * 400 + [4_096.0] * 200, block)
    assert [one.severity for one in said] == ["info"]
    assert said[0].evidence["explained_by"] == ["batch_size: the sequence length went from 2048 to 4096"]


@pytest.mark.parametrize("block", [1, 50, 600])
def test_the_padding_of_each_batch_explains_nothing(block: int) -> None:
    rng = random.Random(3)
    _, bank = found("seq_len", [float(rng.randint(200, 900)) for _ in range(600)], block)
    assert list(bank.context.excuses) == []
