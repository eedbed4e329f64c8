"""Faults that happen for real: what goes wrong in a large run, made small enough to watch in a minute.

Nothing here draws a curve. Each fault breaks the job the way the real one does, and the loss follows.
"""

from __future__ import annotations

import queue

import numpy as np

from data import SOURCES, Batch, Mixture

__all__ = ["FAULTS", "Fault", "make_fault"]


class Fault:
    """Nothing goes wrong. The other faults override what they break.

    Args:
        step: the fault begins at this step of the first pass over the data.
    """

    def __init__(self, step: int) -> None:
        self.step = step

    def batch(self, batch: Batch) -> Batch:
        """Return the batch as the loader hands it out."""
        return batch

    def lr_factor(self, step: int) -> float:
        """Return by what the schedule's learning rate is multiplied at ``step``."""
        return 1.0

    def restored(self, mixture: Mixture) -> None:
        """Called after a checkpoint was loaded: a fresh loader stands where ``mixture`` says."""

    def crashes(self, step: int) -> bool:
        """Return whether the job dies after ``step``, to be started again with ``--resume``."""
        return False


class BadData(Fault):
    """A streaming reader trips over a pocket of broken records and hands out noise from then on.

    So it goes with compressed shards: once the decoder has lost its place, every later record of that stream is
    noise, until the reader is opened again. The loss can't recover by itself. Going back opens a new reader;
    unless the batches of the pocket are skipped, it trips over the same records again.
    """

    #: Batches that hold broken records. Going back 20 steps and skipping 100 batches jumps over them.
    POCKET_BATCHES = 20
    #: The stream that breaks: the library code. Its loss goes to that of noise, ln 256 = 5.5.
    SOURCE = SOURCES.index("code")

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self._lost_its_place = False

    def batch(self, batch: Batch) -> Batch:
        first = self.step - 1  # batches count from 0, steps from 1
        if first <= batch.number < first + self.POCKET_BATCHES:
            self._lost_its_place = True
        if not self._lost_its_place:
            return batch
        tokens = batch.tokens.copy()
        broken = batch.source == self.SOURCE
        noise = np.random.default_rng(batch.number)
        tokens[broken] = noise.integers(0, 256, tokens[broken].shape)
        return Batch(batch.number, tokens, batch.source)

    def restored(self, mixture: Mixture) -> None:
        self._lost_its_place = False


class LrWindow(Fault):
    """Somebody edits the schedule: for a while the learning rate is thirty times too high, and the model diverges."""

    FACTOR = 30.0
    WINDOW_STEPS = 80

    def lr_factor(self, step: int) -> float:
        return self.FACTOR if self.step <= step < self.step + self.WINDOW_STEPS else 1.0


class Sampler(Fault):
    """The mixture is not restored after a restart: the counters of the images come back as zero.

    The sampler believes that the images lag far behind their share and serves little else until they catch up, so
    ``ratio/image_text`` drifts while the total loss looks better than ever. After ``step`` the job dies once, as by the
    loss of a node, and goes on with ``--resume``.

    Args:
        step: last step before it dies.
        restarted: the job was resumed: it does not die again.
    """

    def __init__(self, step: int, *, restarted: bool) -> None:
        super().__init__(step)
        self._restarted = restarted

    def restored(self, mixture: Mixture) -> None:
        state = mixture.state_dict()
        state["tokens_served"][SOURCES.index("digits_captions")] = 0
        mixture.load_state_dict(state)

    def crashes(self, step: int) -> bool:
        return step == self.step and not self._restarted


class Hang(Fault):
    """The loader of one rank loses its worker without a word: the rank waits for a batch that never comes.

    Nothing crashes, and no process ends. The other ranks wait in their next collective. Started again, the loader has
    a worker.

    Args:
        step: the batch of this step never comes.
        rank: this process's. restarted: the job was resumed: its loader is whole.
    """

    RANK = 1

    def __init__(self, step: int, *, rank: int, restarted: bool) -> None:
        super().__init__(step)
        self._here = rank == self.RANK and not restarted
        self._batches: queue.Queue[Batch] = queue.Queue()

    def batch(self, batch: Batch) -> Batch:
        if self._here and batch.number == self.step - 1:
            return self._batches.get()
        return batch


#: Names for ``--fault``.
FAULTS = ("none", "bad_data", "lr_window", "sampler", "hang")


def make_fault(name: str, step: int, *, rank: int, restarted: bool) -> Fault:
    """Return the fault called ``name``, to begin at ``step`` on rank ``rank``; ``restarted``: the job was resumed."""
    if name == "sampler":
        return Sampler(step, restarted=restarted)
    if name == "hang":
        return Hang(step, rank=rank, restarted=restarted)
    return {"none": Fault, "bad_data": BadData, "lr_window": LrWindow}[name](step)
