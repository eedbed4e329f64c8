"""Faults of a restart: what a checkpoint forgot, or the job forgot to read from it."""

from __future__ import annotations

from data_faults import DataFault
from fault import Injected, Restart, Settings
from training import Job

__all__ = ["LostShard", "LrReset", "MixAfterResume", "RepeatData", "RestartFault"]


class RestartFault(DataFault):
    """The job dies and goes on from its newest checkpoint. By itself this is healthy."""

    BEGINS = (520, 780)

    def throw(self) -> None:
        self.restarted = False
        self.crash = self.first
        self.back_to = (self.crash - 1) // Settings().checkpoint_every * Settings().checkpoint_every
        self.pause = float(self.rng.uniform(120, 900))
        self.first, self.last = self.back_to + 1, 10**9
        self.choose()

    def choose(self) -> None:
        """Throw the dice that this fault has besides."""

    def after_step(self, step: int) -> Restart | None:
        if step == self.crash and not self.restarted:
            self.restarted = True
            return Restart(self.back_to, self.pause)
        return None


class LostShard(RestartFault):
    """One shard of the optimizer's second moments comes back as zeros, while the step counter is restored.

    Nothing corrects the bias of the zeros then, so that this layer's first updates are several times too long.
    """

    name = "lost_shard"
    text = "after a resume one layer's second moments of Adam are zero, but the step counter is not"

    def choose(self) -> None:
        self.layer = str(self.rng.choice(["inner", "inner", "out"]))

    def restored(self, job: Job) -> None:
        for parameter in getattr(job.model, self.layer).parameters():
            job.optimizer.state[parameter]["exp_avg_sq"].zero_()

    def injected(self) -> list[Injected]:
        return [Injected("resume_artifact", self.first)]


class LrReset(RestartFault):
    """The schedule was not restored: it starts again at a rate several times higher than before."""

    name = "lr_reset"
    text = "after a resume the learning rate is 6 to 15 times what it was: the schedule was not restored"

    def choose(self) -> None:
        self.factor = float(self.rng.uniform(6, 15))

    def lr_factor(self, step: int) -> float:
        return self.factor if self.restarted else 1.0

    def injected(self) -> list[Injected]:
        return [Injected("resume_artifact", self.first, cause="learning_rate")]


class RepeatData(RestartFault):
    """The place in the data is that of an older checkpoint: known batches come again, then fresh ones."""

    name = "repeat_data"
    text = "after a resume the sampler goes on 150 to 300 batches too early: batches come again, then fresh ones"

    def choose(self) -> None:
        self.again = int(self.rng.integers(150, 300))
        self.last = self.back_to + self.again

    def settings(self) -> Settings:
        return Settings(steps=1000, rows=self.rows_a_step, lr=3e-3, learns_by_heart=True)

    def restored(self, job: Job) -> None:
        number, seed, drawn, served = job.sampler.state()
        old = number - self.again
        rows = [(now * old) // number for now in drawn]
        job.sampler.go_to((old, seed, rows, served))

    def injected(self) -> list[Injected]:
        return [Injected("repeat_data", self.first, last_step=self.last)]


class MixAfterResume(RestartFault):
    """The counters of one data set come back as zero: the sampler serves little else until it has caught up."""

    name = "mix_after_resume"
    text = "after a resume the mixture believes that no image was served yet and serves little else"

    def restored(self, job: Job) -> None:
        job.sampler.served[job.sampler.datasets.index("image")] = 0

    def injected(self) -> list[Injected]:
        return [Injected("data_mix_drift", self.first, metric="ratio/image_text")]
