"""Loaders that Accelerate has prepared, as Trainer's are: does a pass come again, and batches from a place on."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any

__all__ = ["batches_from", "draws", "length_of", "order_comes_again", "same_order", "sampler_of"]

#: Samplers whose second pass over an epoch is as the first: in the order of the data, computed from seed and epoch, or
#: (the last one) that of a stream of data.
_REPEATING = ("SequentialSampler", "DistributedSampler", "SeedableRandomSampler", "_InfiniteConstantSampler")


def sampler_of(loader: Any) -> Any:
    """Return the sampler of a loader, below those that distribute its samples to ranks; None if unknown."""
    batches = getattr(loader, "batch_sampler", None)
    while (inner := getattr(batches, "batch_sampler", None)) is not None:
        batches = inner
    if batches is None:
        return getattr(loader, "sampler", None)
    return getattr(batches, "sampler", None) if type(batches).__name__ == "BatchSampler" else None


def order_comes_again(loader: Any) -> bool:
    """Return whether a second pass over the same epoch has the same batches: only then some of them can be skipped."""
    return type(sampler_of(loader)).__name__ in _REPEATING


def length_of(loader: Any) -> int | None:
    """Return the batches of one pass on this rank, None if unknown before its end."""
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


def _drawn_from(loader: Any) -> Any:
    """Return the source of random numbers that shuffle a loader: a generator, or torch itself; None without any."""
    sampler = sampler_of(loader)
    if type(sampler).__name__ != "RandomSampler":
        return None
    return sampler.generator or import_module("torch").random


def draws(loader: Any) -> str | None:
    """Return the state, in hex, from which the order of the next pass will be drawn; None where it is not drawn so."""
    source = _drawn_from(loader)
    if source is None:
        return None
    state = source.get_state() if hasattr(source, "get_state") else source.get_rng_state()
    return bytes(state.tolist()).hex()


def same_order(loader: Any, epoch: int, before: int, order: str | None) -> Generator[Any, None, None]:
    """Yield a pass over a loader from a batch on; one that was drawn from ``order`` has the same batches again.

    Args:
        epoch: number of the pass. before: batches to pass over. order: of :func:`draws`, from before that pass.
    """
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    source = import_module("accelerate").skip_first_batches(loader, before) if before else loader
    try:
        if before and order is not None:
            yield from _drawn_again(loader, source, order)
        else:
            yield from source
    finally:
        if hasattr(source, "end"):
            source.end()  # for Accelerate a pass that is left is not over


def _drawn_again(loader: Any, source: Any, order: str) -> Iterator[Any]:
    torch: Any = import_module("torch")
    drawn_from: Any = _drawn_from(loader)
    state = torch.tensor(list(bytes.fromhex(order)), dtype=torch.uint8)
    if drawn_from is not torch.random:
        drawn_from.set_state(state)
        yield from source
        return
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    iterator = iter(source)
    first = [*_one(iterator)]
    torch.set_rng_state(now)  # of the checkpoint
    yield from first
    yield from iterator


def _one(iterator: Iterator[Any]) -> Iterator[Any]:
    for batch in iterator:
        yield batch
        return
