"""Restarts after which the loss is a few per cent higher for tens of points, and one of the same job that is right.

A large batch and a high constant rate: the noise of the loss is 3 %, so that a wave of 4 to 8 % can be measured. Adam's
second moments look back on 1,000 steps, as by default, so that the loss comes back slowly.
"""

from __future__ import annotations

import math

from fault import Injected, Settings
from restart_faults import RestartFault
from training import Job

__all__ = ["HealthyLargeResume", "LostOptimizer", "SmallMoments", "WarmUpAgain"]


class _LargeJob(RestartFault):
    """A job with 128 rows that dies and goes on."""

    BEGINS = (410, 590)

    def settings(self) -> Settings:
        return Settings(steps=700, rows=128, lr=8e-3, final_lr=1.0, beta2=0.999)

    def injected(self) -> list[Injected]:
        return [Injected("resume_artifact", self.first)]


class LostOptimizer(_LargeJob):
    """The checkpoint holds the model only: Adam begins anew, with a step counter of zero."""

    name = "lost_optimizer"
    text = "after a resume the optimizer's state is empty: a wave of 4 to 8 % over some tens of points"

    def restored(self, job: Job) -> None:
        job.optimizer.state.clear()


class SmallMoments(_LargeJob):
    """The second moments are those of smaller gradients, as where a resume on fewer ranks averages what was summed.

    All updates are two to four times too long until the moments have grown.
    """

    name = "small_moments"
    text = "after a resume Adam's second moments are 4 to 16 times too small: a wave of 3 to 7 % over 100 points"

    def choose(self) -> None:
        self.factor = float(self.rng.uniform(4, 16))

    def restored(self, job: Job) -> None:
        for state in job.optimizer.state.values():
            state["exp_avg_sq"] /= self.factor


class WarmUpAgain(_LargeJob):
    """The schedule begins anew, with its warm-up: the loss falls at first, then rises with the rate."""

    name = "warm_up_again"
    text = "after a resume late in a cosine the rate warms up again to its full height"

    def settings(self) -> Settings:
        return Settings(steps=700, rows=128, lr=8e-3, final_lr=0.05, beta2=0.999)

    def lr_factor(self, step: int) -> float:
        if not self.restarted:
            return 1.0
        settings = self.settings()
        cosine = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        usual = settings.final_lr + (1 - settings.final_lr) * cosine
        return min(1.0, (step - self.back_to) / settings.warm_up_steps) / usual

    def injected(self) -> list[Injected]:
        return [Injected("resume_artifact", self.first, cause="learning_rate")]


class HealthyLargeResume(_LargeJob):
    """The same job goes on with all that belongs to it."""

    name = "healthy_large_resume"
    text = "nothing; a batch of 128 rows at a high constant rate, and the job resumes with all that belongs to it"

    def injected(self) -> list[Injected]:
        return [Injected("resume_artifact", self.first, alarm=False, measured=False)]
