"""The place in the data of a Composer job: its own way to find it again can leave nothing out.

Composer's epoch stays as long as it was. From batches that were left out on, it begins that much later in the data.
"""

from __future__ import annotations

from importlib import import_module

from stabilityclient.integrations.data import Batches, ids_of
from stabilityclient.integrations.shared.ranks import rank_and_world
from stabilityclient.integrations.shared.skips import Skips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Place", "keeps_its_own_place"]


class Place:
    """Hands out the batches of a trainer's epochs.

    Args:
        trainer: in ``fit_start``.

    Attributes:
        skips: what was and will be left out.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run, self._trainer = run, trainer
        self._loader = trainer.state.dataloader
        self._batches = Batches(self._loader)
        self.skips = Skips()
        #: Steps whose batch was handed out.
        self._step = int(trainer.state.timestamp.batch)

    def is_at(self, step: int, loader: Any) -> bool:
        """Say whether this is the place of a trainer."""
        return self._step == step and self._loader is loader

    def epoch(self, original: Callable[..., Any], mode: Any) -> Iterator[Any]:
        """Yield what is left of an epoch, with the events of Composer's own iterator around each batch."""
        state = self._trainer.state
        batches = original(mode)
        given, state._dataloader = state._dataloader, self._each()
        try:
            first = next(batches, self)
        finally:
            state._dataloader = given
        if first is not self:
            yield first
            yield from batches

    def _each(self) -> Iterator[Any]:
        trainer = self._trainer
        state = trainer.state
        if trainer._rng_state is not None:
            import_module("composer.utils.reproducibility").load_rng_state(trainer._rng_state)
            trainer._rng_state = None
        for _ in range(int(state.dataloader_len) - int(state.timestamp.batch_in_epoch)):
            step = int(state.timestamp.batch) + 1
            with self._run.phase("data"):
                self._batches.skip(self.skips.before(step))
                batch = next(self._batches)
            ids = ids_of(batch)
            if ids is not None:
                self._run.data(step, ids=ids, epoch=self._batches.epoch, position=self._batches.position)
            self._step = step
            yield batch

    def state(self) -> dict[str, Any]:
        """Return what goes into a checkpoint, of all ranks; all call it."""
        own = {"skips": self.skips.state(), "data": self._batches.state_dict()}
        return {"ranks": import_module("composer.utils.dist").all_gather_object(own)}

    def load(self, state: dict[str, Any]) -> None:
        """Go to the place that a checkpoint has."""
        rank, world = rank_and_world()
        then = len(state["ranks"])
        own = state["ranks"][rank if then == world else 0]
        self.skips = Skips(own["skips"])
        self._batches.load_state_dict(own["data"], share=then / world)


def keeps_its_own_place(state: Any) -> bool:
    """Say whether Composer is to find the place: where its epochs are not the loader's, or the data has a state."""
    loader = state.dataloader
    if hasattr(loader, "__next__") or state.dataloader_len is None or not hasattr(loader, "__len__"):
        return True
    if len(loader) != int(state.dataloader_len):
        return True
    return hasattr(getattr(loader, "dataset", None), "state_dict") and not hasattr(loader, "state_dict")
