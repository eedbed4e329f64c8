"""Random stories of a training job for hypothesis: what ranks log, declare, lose and repeat, as frames in order."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import strategies as st

from stabilityclient.wire import Frame
from support.job_frames import Job

__all__ = ["MOVES", "Story", "stories", "tell"]

#: What can happen, each with an amount that it may use.
MOVES = (
    "train", "train", "train", "declare", "order", "restart", "stray", "hold", "deliver", "checkpoint", "gone", "seen",
    "alert", "agent", "die", "rare", "nan", "spike", "micro",
)  # fmt: skip
#: One move: its name and an amount of 1 to 40.
Story = list[tuple[str, int]]


def stories(moves: Sequence[str] = MOVES, max_size: int = 14) -> st.SearchStrategy[tuple[Story, int]]:
    """Return a strategy of (moves, number of ranks)."""
    move = st.tuples(st.sampled_from(moves), st.integers(1, 40))
    return st.tuples(st.lists(move, min_size=1, max_size=max_size), st.integers(1, 3))


def tell(story: Story, ranks: int) -> list[Frame]:
    """Return the frames of a story. The same story gives the same frames."""
    return _Teller(ranks).tell(story)


class _Teller:
    def __init__(self, ranks: int) -> None:
        self._rng = random.Random(ranks)
        self._ranks = ranks
        self._start = 1
        self._jobs = self._launch()
        self._sidecar = Job(0, 1)
        self._sidecar.info.rank, self._sidecar.info.source = None, "a1"
        self._step = 0
        self._frames: list[Frame] = []
        self._held: list[Frame] = []
        self._holds = 0
        self._level = 2.5

    def _launch(self) -> list[Job]:
        return [Job(rank, self._start, self._ranks) for rank in range(self._ranks)]

    def tell(self, story: Story) -> list[Frame]:
        for number, (what, amount) in enumerate(story):
            getattr(self, f"_{what}")(amount, number)
        self._deliver(0, 0)
        return self._frames

    def _say(self, job: Job, frame: Frame) -> None:
        """A frame of a rank that is held back comes later, in its order."""
        held = self._holds > 0 and (job.info.rank == self._ranks - 1)
        (self._held if held else self._frames).append(frame)

    def _log(self, job: Job, steps: list[int], odd: dict[int, float] | None = None) -> None:
        rng = self._rng
        loss = [(odd or {}).get(step, self._level * (1 + rng.gauss(0, 0.01))) for step in steps]
        columns = {"loss": loss, "lr": [1e-3] * len(steps)}
        columns |= {"loss/text": [0.9 * value for value in loss], "loss/image": [1.0] * len(steps)}
        if rng.random() < 0.5:
            columns["grad_norm"] = [rng.random() for _ in steps]
        self._say(job, job.rows(steps, columns))

    def _train(self, amount: int, number: int, odd: dict[int, float] | None = None) -> None:
        steps = list(range(self._step + 1, self._step + amount + 1))
        cut = 1 + self._rng.randrange(amount)
        for at in range(0, amount, cut):
            for job in self._jobs:
                self._log(job, steps[at : at + cut], odd)
        self._step += amount

    def _nan(self, amount: int, number: int) -> None:
        bad = [math.nan, math.inf, -math.inf][amount % 3]
        self._train(amount, number, {self._step + (amount + 1) // 2: bad})

    def _spike(self, amount: int, number: int) -> None:
        self._train(50, number)
        self._train(amount, number, {self._step + i: self._level * 3 for i in range(1, 4)})

    def _micro(self, amount: int, number: int) -> None:
        """A row for each micro-batch, in frames that end anywhere."""
        each = 2 + amount % 3
        steps = [self._step + 1 + at // each for at in range(amount)]
        cut = 1 + self._rng.randrange(amount)
        for at in range(0, amount, cut):
            for job in self._jobs:
                self._log(job, steps[at : at + cut])
        self._step = steps[-1]

    def _declare(self, amount: int, number: int, **data: str) -> None:
        to_step = max(self._step - amount, 0)
        for job in self._jobs:
            self._say(job, job.rolled_back(to_step, f"k{number}", reason="we went back", **data))
        self._step = to_step
        self._train(4, number)

    def _order(self, amount: int, number: int) -> None:
        self._declare(amount, number, command_id=f"c-{number}", issuer="ada")

    def _restart(self, amount: int, number: int) -> None:
        self._start += 1
        self._jobs = self._launch()
        self._step = max(self._step - amount, 0)
        self._train(4, number)

    def _stray(self, amount: int, number: int) -> None:
        self._log(self._jobs[0], [max(self._step - amount, 0)])

    def _rare(self, amount: int, number: int) -> None:
        self._step += amount
        for job in self._jobs:
            self._log(job, [self._step])

    def _hold(self, amount: int, number: int) -> None:
        self._holds += 1

    def _deliver(self, amount: int, number: int) -> None:
        self._holds = 0
        self._frames += self._held
        self._held = []

    def _checkpoint(self, amount: int, number: int) -> None:
        for job in self._jobs:
            self._say(job, job.event("checkpoint", self._step, path=f"c/{self._step}"))

    def _gone(self, amount: int, number: int) -> None:
        self._say(self._jobs[0], self._jobs[0].event("checkpoint_gone", self._step, path=f"c/{self._step}"))

    def _seen(self, amount: int, number: int) -> None:
        bad = [f"part {amount}"] if amount % 2 else []
        found = {"path": f"c/{self._step}", "kind": "dcp", "complete": not bad, "bad": bad, "world_size": 2}
        self._frames.append(self._sidecar.event("checkpoint_seen", self._step, **found))

    def _alert(self, amount: int, number: int) -> None:
        self._say(self._jobs[0], self._jobs[0].event("alert", self._step, title="odd", severity="info"))

    def _agent(self, amount: int, number: int) -> None:
        steps = [max(self._step - amount, 0), self._step]
        self._frames.append(self._sidecar.event("gpu_note", visible=True, text=f"{amount} GPUs"))
        self._frames.append(self._sidecar.rows(sorted({*steps}), {"gpu/0/temp_c": [40.0] * len({*steps})}))

    def _die(self, amount: int, number: int) -> None:
        job = self._jobs[amount % self._ranks]
        self._say(job, job.event("exception", self._step, type="RuntimeError", message="gone"))
