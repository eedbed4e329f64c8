"""Loaders that Accelerate has prepared, as Trainer's are: does a pass come again, and batches from a place on."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["batches_from", "length_of", "order_comes_again", "sampler_of"]

#: Samplers whose second pass over an epoch is as the first: in the order of the data, computed from seed and epoch, or
#: (the last one) that of a stream of data.
_REPEATING = ("SequentialSampler", "DistributedSampler", "SeedableRandomSampler", "_InfiniteConstantSampler")


def sampler_of(loader: Any) -> Any:
    """Return what draws the samples of a loader, below all that deals them out to ranks; None where nobody knows."""
    batches = getattr(loader, "batch_sampler", None)
    while (inner := getattr(batches, "batch_sampler", None)) is not None:
        batches = inner
    if batches is None:
        return getattr(loader, "sampler", None)
    return getattr(batches, "sampler", None) if type(batches).__name__ == "BatchSampler" else None


def order_comes_again(loader: Any) -> bool:
    """Say whether a second pass over the same epoch has the same batches: only then some of them can be skipped."""
    return type(sampler_of(loader)).__name__ in _REPEATING


def length_of(loader: Any) -> int | None:
    """Return the batches of one pass on this rank, None where that is not known before its end."""
    try:
        return len(loader) or None
    except TypeError:
        return None


def batches_from(loader: Any, place: int, length: int, count: int) -> Iterator[Any]:
    """Yield batches of a loader, over the ends of its passes; those before them are passed over by their numbers.

    Args:
        place: batches of this rank before the first one, counted from the first pass on.
        length: of a pass. count: how many to yield.
    """
    skip_first_batches: Any = import_module("accelerate").skip_first_batches
    while count > 0:
        epoch, before = divmod(place, length)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        begin = place
        for batch in skip_first_batches(loader, before) if before else loader:
            place, count = place + 1, count - 1
            yield batch
            if not count:
                return
        if place == begin:
            return
