"""The place in the data of a Lightning job: a fit that goes on from a checkpoint goes on with the batch behind it.

Lightning by itself begins the epoch's data again where the loader has no state of its own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["Place", "hands_out_batches", "order_comes_again"]

#: Samplers of torch whose second pass over an epoch is as the first; the last one is that of a stream of data.
_REPEATING = ("SequentialSampler", "DistributedSampler", "_InfiniteConstantSampler")


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


def hands_out_batches(trainer: Any) -> bool:
    """Say whether Lightning asks for the batches; a ``training_step(dataloader_iter)`` does it by itself."""
    return "DataLoaderIter" not in type(trainer.fit_loop._data_fetcher).__name__


def order_comes_again(trainer: Any) -> bool:
    """Say whether a second pass over the same epoch has the same batches: only then some of them can be skipped.

    It has where the loader keeps its state, and where a sampler of torch follows the data or computes its order from
    seed and epoch. Where it draws (``shuffle=True``), and where nobody knows (samplers and loaders of the job), not.
    """
    return all(map(_repeats, trainer.fit_loop._data_fetcher.combined_loader.flattened))


def _repeats(loader: Any) -> bool:
    if _stateful(loader):
        return True
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches).__name__ != "BatchSampler":
        return False
    return type(getattr(loader, "sampler", None)).__name__ in _REPEATING


def _stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
