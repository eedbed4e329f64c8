"""The place in the data of a Lightning job: a fit that goes on from a checkpoint goes on with the batch behind it.

Lightning by itself begins the epoch's data again where the loader has no state of its own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["Place", "order_comes_again"]


class Place:
    """Stands between Lightning's fetcher and the loaders, from a rollback on, and leaves out what is to be left out.

    Args:
        trainer: in ``on_train_start``.
        skipped: batches that were left out in this epoch up to the checkpoint.
        skip: batches to leave out behind it.
    """

    def __init__(self, trainer: Any, skipped: int, skip: int) -> None:
        self._epoch_loop = trainer.fit_loop.epoch_loop
        fetcher = trainer.fit_loop._data_fetcher
        self._loader = fetcher.combined_loader
        #: Batches that were left out in this epoch.
        self.skipped = skipped
        #: Batches still to be left out.
        self.skip = skip
        # Who has a state is where it was already.
        self._keeps_place = any(map(_stateful, self._loader.flattened)) or not order_comes_again(trainer)
        if fetcher.length is not None:
            self._length = fetcher.length
            fetcher.setup(_Sized(self))
        else:
            fetcher.setup(self)
        iter(fetcher)

    @property
    def length(self) -> int:
        """Batches that this epoch has, without those that are left out."""
        return max(0, int(self._length) - self.skipped - self.skip)

    def reset(self) -> None:
        """Shut the loaders' workers down."""
        self._loader.reset()

    def __iter__(self) -> Iterator[Any]:
        # A generator: the loaders begin when the first batch is asked for, when Lightning knows epoch and place.
        iterator = iter(self._loader)
        if not self._keeps_place:
            progress = self._epoch_loop.batch_progress
            done = 0 if progress.is_last_batch else progress.current.ready + self.skipped
            for _ in range(done):
                next(iterator, None)
        self._keeps_place = False
        # Not "yield from" or "for": Lightning's loader is its own iterator, and begins again when asked for one.
        while (batch := next(iterator, None)) is not None:
            if self.skip:
                self.skip -= 1
                self.skipped += 1
            else:
                yield batch


class _Sized:
    """The same of loaders whose length is known."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.reset = place.reset

    def __len__(self) -> int:
        return self._place.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._place)


def order_comes_again(trainer: Any) -> bool:
    """Say whether a second pass over the same epoch has the same batches: only then some of them can be skipped.

    It has not where a sampler draws from torch's own generator (``shuffle=True``), unless the loader keeps its state.
    """
    loaders = trainer.fit_loop._data_fetcher.combined_loader.flattened
    return all(_stateful(loader) or not _draws(getattr(loader, "sampler", None)) for loader in loaders)


def _stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _draws(sampler: Any) -> bool:
    # RandomSampler, WeightedRandomSampler and SubsetRandomSampler have a generator; with one of their own the second
    # pass is another one too. DistributedSampler computes its order from seed and epoch.
    return hasattr(sampler, "generator")
