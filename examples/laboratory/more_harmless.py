"""More jobs in which nothing is wrong: other schedules, epochs, a curriculum, a machine that stutters, few rows."""

from __future__ import annotations

import math

from fault import SHARES, Fault, Injected, Settings
from machine import Machine
from training import Job

__all__ = ["MORE_HARMLESS"]


class HealthyEpochs(Fault):
    """A small set in the same order each time: the loss falls at each epoch, down to near zero."""

    name = "healthy_epochs"
    text = "nothing; 60 batches that come again and again in one order"

    def settings(self) -> Settings:
        return Settings(steps=900, rows=12, learns_by_heart=True, epoch_batches=60)


class HealthyRestarts(Fault):
    """A cosine that starts again: the rate goes up tenfold, and the loss a little."""

    name = "healthy_restarts"
    text = "nothing; the learning rate is a cosine of 300 steps that starts again"
    CYCLE = 300

    def settings(self) -> Settings:
        return Settings(steps=1200, rows=32, final_lr=1.0)

    def lr_factor(self, step: int) -> float:
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step % self.CYCLE) / self.CYCLE))

    def injected(self) -> list[Injected]:
        return [
            Injected("lr_restart", step, metric="lr", last_step=step + 50, alarm=False, measured=False)
            for step in (300, 600, 900)
        ]


class HealthyDecay(Fault):
    """A constant rate, and a steep linear decay in the last fifth."""

    name = "healthy_decay"
    text = "nothing; a constant learning rate that goes to zero over the last fifth"

    def settings(self) -> Settings:
        return Settings(steps=1000, rows=24, final_lr=1.0)

    def lr_factor(self, step: int) -> float:
        return min(1.0, (1000 - step) / 200)


class HealthyCurriculum(Fault):
    """The share of images grows in six small steps, as somebody planned it."""

    name = "healthy_curriculum"
    text = "nothing; each 120 steps the share of images grows by 2 %"

    def before_step(self, job: Job, step: int) -> None:
        if step % 120 == 0 and step <= 720:
            images = SHARES["image"] + 0.02 * (step // 120)
            rest = (1 - images) / (1 - SHARES["image"])
            job.sampler.shares = {name: share * rest for name, share in SHARES.items()} | {"image": images}
            total = sum(job.sampler.served)
            job.sampler.served = [round(total * share) for share in job.sampler.shares.values()]


class HealthyStutter(Fault):
    """The storage stutters: bursts of three to eight steps that take up to twice as long."""

    name = "healthy_stutter"
    text = "nothing; each 50 steps or so the loader is late for three to eight steps"

    def prepare(self) -> None:
        starts = range(100, 950, 50)
        shift = self.rng.integers(0, 40, len(starts)).tolist()
        lasts = self.rng.integers(3, 9, len(starts)).tolist()
        self.stretches = [(s + d, s + d + n) for s, d, n in zip(starts, shift, lasts, strict=True)]
        self.factors = self.rng.uniform(1.2, 2.0, len(starts)).tolist()

    def machine(self, step: int, machine: Machine) -> None:
        machine.workers, machine.load_factor = 4, 1.0
        for (first, last), factor in zip(self.stretches, self.factors, strict=True):
            if first <= step <= last:
                rows = self.settings().rows
                machine.workers = 1
                machine.load_factor = factor * machine.work_s(rows) / machine.load_s(rows)


class HealthyFewRows(Fault):
    """A row of the log each 50 steps."""

    name = "healthy_few_rows"
    text = "nothing; a row of the log each 50 steps"

    def settings(self) -> Settings:
        return Settings(steps=6000, rows=8, log_every=50)


#: In the order of the documentation.
MORE_HARMLESS: tuple[type[Fault], ...] = (
    HealthyEpochs, HealthyRestarts, HealthyDecay, HealthyCurriculum, HealthyStutter, HealthyFewRows,
)  # fmt: skip
