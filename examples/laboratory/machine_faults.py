"""Faults of the machine: a loader that does not keep up, a rank that is slower than the others."""

from __future__ import annotations

from data_faults import DataFault
from fault import Injected, Settings
from machine import Machine

__all__ = ["SlowLoader", "SlowRank"]


class SlowLoader(DataFault):
    """Workers of the loader die and are not started again: the ranks wait for data."""

    name = "slow_loader"
    text = "three of four loader workers die and the storage gets slower: steps take 1.4 to 3 times as long"

    def throw(self) -> None:
        self.last = self.first + int(self.rng.integers(100, 200))
        self.times = float(self.rng.uniform(1.4, 3.0))

    def machine(self, step: int, machine: Machine) -> None:
        machine.workers, machine.load_factor = 4, 1.0
        if self.now(step):
            machine.workers = 1
            machine.load_factor = self.times * machine.work_s(self.rows_a_step) / machine.load_s(self.rows_a_step)

    def injected(self) -> list[Injected]:
        return [Injected("throughput", self.first, metric="tokens_per_s", last_step=self.last)]


class SlowRank(DataFault):
    """One GPU throttles: its part takes longer, and all others wait for it at the gradients."""

    name = "slow_rank"
    text = "one of eight ranks needs 1.3 to 2 times as long for its part from a step on"
    RANKS = 8

    def throw(self) -> None:
        self.last = 10**9
        self.rank = int(self.rng.integers(1, self.RANKS))
        self.factor = float(self.rng.uniform(1.3, 2.0))

    def settings(self) -> Settings:
        return Settings(steps=1000, rows=24, ranks=self.RANKS)

    def machine(self, step: int, machine: Machine) -> None:
        if step == self.first:
            machine.rank_factor[self.rank] = self.factor

    def injected(self) -> list[Injected]:
        return [Injected("straggler", self.first, metric="step_time_s", rank=self.rank, measured=False)]
