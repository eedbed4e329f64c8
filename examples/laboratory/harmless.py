"""Jobs in which nothing is wrong, however their curves look. Each of them has fooled a detector."""

from __future__ import annotations

from data_faults import DataFault
from fault import Fault, Injected, Restart, Settings
from restart_faults import RestartFault
from streams import PARITY
from training import Job, LogRow

__all__ = ["HARMLESS"]


class HealthySmooth(Fault):
    """A large batch: the noise of the loss is 3 %."""

    name = "healthy_smooth"
    text = "nothing; a batch of 128 rows"

    def settings(self) -> Settings:
        return Settings(steps=700, rows=128)


class HealthyNoisy(Fault):
    """A batch of eight rows: the noise of the loss is 15 %."""

    name = "healthy_noisy"
    text = "nothing; a batch of 8 rows"

    def settings(self) -> Settings:
        return Settings(steps=2000, rows=8)


class HealthyHeavyTailed(Fault):
    """The log holds the loss of one rank's rows, and now and then one of them is a dump of bytes."""

    name = "healthy_heavy_tailed"
    text = "nothing; the loss of one rank's 4 of 32 rows, and one row in 600 is a dump of bytes"

    def settings(self) -> Settings:
        return Settings(steps=1500, rows=32, one_rank_loss=True, wild_rows=600)


class HealthySparse(Fault):
    """One row of the log each ten steps."""

    name = "healthy_sparse"
    text = "nothing; a row of the log each ten steps"

    def settings(self) -> Settings:
        return Settings(steps=3000, rows=24, log_every=10)


class HealthyResume(RestartFault):
    """The job dies and goes on from its checkpoint, with all that belongs to it."""

    name = "healthy_resume"
    text = "nothing; the job dies and resumes with model, optimizer, rate and place in the data"


class HealthyRollback(RestartFault):
    """People roll back by 200 steps and skip batches."""

    name = "healthy_rollback"
    text = "nothing; a rollback by some 200 steps that skips 100 batches"

    def choose(self) -> None:
        self.back_to -= 100

    def after_step(self, step: int) -> Restart | None:
        restart = super().after_step(step)
        return None if restart is None else Restart(restart.to_step, 30.0)

    def restored(self, job: Job) -> None:
        for _ in range(100):
            job.sampler.next_batch()


class HealthyGaps(Fault):
    """Checkpoints and evaluations take their time, and once the log has a hole of 60 steps."""

    name = "healthy_gaps"
    text = "nothing; 25 s for each checkpoint, 70 s for each evaluation, and 60 steps that were not logged"

    def prepare(self) -> None:
        self.hole = int(self.rng.integers(400, 700))

    def pause_s(self, step: int) -> float:
        return (25.0 if step % 100 == 0 else 0.0) + (70.0 if step % 250 == 0 else 0.0)

    def logged(self, step: int) -> bool:
        return not self.hole <= step < self.hole + 60


class WarmUp(Fault):
    """A long warm-up: the loss stands, falls steeply, then slowly."""

    name = "warm_up"
    text = "nothing; the learning rate rises over 400 steps"

    def settings(self) -> Settings:
        return Settings(steps=1200, rows=32, warm_up_steps=400)

    def injected(self) -> list[Injected]:
        return [Injected("warm_up", 1, last_step=400, alarm=False, measured=False)]


class LrDrop(DataFault):
    """The rate is divided by ten, as a schedule with steps has it: the loss falls at once to a lower level."""

    name = "lr_drop"
    text = "nothing; a constant rate that is divided by ten at a step"

    def throw(self) -> None:
        self.last = 10**9

    def settings(self) -> Settings:
        return Settings(steps=1000, rows=64, lr=8e-3, final_lr=1.0)

    def lr_factor(self, step: int) -> float:
        return 0.1 if self.now(step) else 1.0

    def injected(self) -> list[Injected]:
        return [Injected("lr_drop", self.first, metric="lr", alarm=False, measured=False)]


class BatchRamp(Fault):
    """The batch doubles three times: less noise, longer steps, shorter gradients."""

    name = "batch_ramp"
    text = "nothing; the batch grows from 12 over 24 and 48 to 96 rows"

    def settings(self) -> Settings:
        return Settings(steps=800, rows=12)

    def rows(self, step: int, usual: int) -> int:
        return usual * 2 ** min(3, step // 200)

    def injected(self) -> list[Injected]:
        return [
            Injected("batch_size", step, metric="batch_size", alarm=False, measured=False) for step in (200, 400, 600)
        ]


class SuddenDrop(Fault):
    """One part of the data follows a rule that no single token shows; one day the model has found it."""

    name = "sudden_drop"
    text = "nothing; the loss stands at that of guessing, then the rule (a parity of five bits) is found"

    def settings(self) -> Settings:
        return Settings(steps=1400, rows=24, lr=1.5e-3, final_lr=0.5, shares=((PARITY, 0.8), ("text", 0.2)))

    def found(self, rows: list[LogRow]) -> int | None:
        """Return the first step at which the bits are told better than by guessing."""
        return next((row["step"] for row in rows if row["step"] > 50 and row[f"loss/{PARITY}"] < 0.6), None)


#: In the order of the documentation.
HARMLESS: tuple[type[Fault], ...] = (
    HealthySmooth, HealthyNoisy, HealthyHeavyTailed, HealthySparse, HealthyResume, HealthyRollback, HealthyGaps, WarmUp,
    LrDrop, BatchRamp, SuddenDrop,
)  # fmt: skip
