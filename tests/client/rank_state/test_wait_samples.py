"""Samples see each part of a step as often as it is long, whatever the step's length, and a step counts once."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest

from stabilityclient.rank_state import heartbeat
from stabilityclient.rank_state.heartbeat import WaitSamples


class Shares:
    """In place of a slot."""

    owner = 0

    def __init__(self) -> None:
        self.shares: list[float] = []

    def add_waits(self, share: float) -> None:
        self.shares.append(share)


def sampled(monkeypatch: pytest.MonkeyPatch, step_s: float, own_s: float, seconds: float, pid: int = 1) -> list[float]:
    """Return the shares of waiting of the steps that were sampled."""
    slot, now = Shares(), 0.0
    monkeypatch.setattr("os.getpid", lambda: pid)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace())
    monkeypatch.setattr(heartbeat, "waits", lambda frame: now % step_s >= own_s)
    samples = WaitSamples(slot, 2)  # type: ignore[arg-type]
    samples.begin(now)
    while now < seconds:
        now = samples.due
        samples.sample(int(now / step_s), now)
    return slot.shares


@pytest.mark.parametrize("step_s", [0.05, 0.125, 0.18, 0.1814, 0.25, 0.4045, 1.0, 7.0])
@pytest.mark.parametrize("pid", [1, 2, 77])
def test_each_part_of_a_step_is_seen_as_often_as_it_is_long(
    step_s: float, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = sampled(monkeypatch, step_s, 0.6 * step_s, max(20.0, 40 * step_s), pid)
    assert sum(shares) / len(shares) == pytest.approx(0.4, abs=4 * math.sqrt(0.24 / len(shares)))


def test_a_long_step_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(sampled(monkeypatch, 10.0, 5.0, 60.0)) in (5, 6)


def test_one_process_alone_is_not_looked_at() -> None:
    samples = WaitSamples(Shares(), 1)  # type: ignore[arg-type]
    samples.begin(5.0)
    assert samples.due == math.inf
