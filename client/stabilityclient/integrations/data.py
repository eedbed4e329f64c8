"""A loader that knows its place: batches of any loader, with those left out, and a state for checkpoints.

batches = Batches(loader)
batch = next(batches)        # over the end of an epoch, too
state = batches.state_dict() # with the checkpoint of this step
batches.load_state_dict(state); batches.skip(3)
"""

from __future__ import annotations

import pickle
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

__all__ = ["Batches", "ids_of"]

#: Names of samples in a batch that is a mapping, best first.
_IDS = ("ids", "id", "sample_ids", "index", "input_ids", "tokens")


class Batches:
    """Iterates over the batches of a loader, epoch after epoch, and can be put back to any place of them.

    A loader with ``state_dict`` and ``load_state_dict`` (``StatefulDataLoader``, ``StreamingDataLoader``) is put where
    it was, also back within a process. Any other begins the epoch again with the random numbers that it began with, and
    the batches up to the place are loaded and passed over: that takes the loader's time. Before each epoch
    ``set_epoch`` of the loader, its sampler and its data set is called where there is one, so a ``DistributedSampler``
    shuffles anew.

    Args:
        loader: can be iterated over again and again; or a function that draws the next batch, which has no epochs.
            Around its calls the generators of Python, NumPy and torch (CPU) are set to states of the data's own.

    Attributes:
        epoch: number of the pass over the data, from 0.
        in_epoch: batches that were handed out or left out in this epoch.
        position: the same over all epochs.
    """

    def __init__(self, loader: Iterable[Any] | Callable[[], Any]) -> None:
        self.epoch = self.in_epoch = self.position = 0
        self._loader: Any = loader
        self._draws = callable(loader) and not hasattr(loader, "__iter__")
        if not self._draws and hasattr(loader, "__next__"):
            what = f"loader is a {type(loader).__name__}, which ends with its first pass"
            raise TypeError(f"{what}; expected a DataLoader or the like, or a function that draws the next batch")
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._iterator: Iterator[Any] | None = None
        #: Random numbers of this epoch's order; of a function, those of its next batch.
        self._numbers: dict[str, Any] = _seeded() if self._draws else {}
        self._sampler: Any = None if self._draws else getattr(loader, "sampler", None)
        #: Seeds of a DistributedSampler, each with the first epoch that it is for; before them the job's.
        self._seed_of_job = getattr(self._sampler, "seed", None)
        self._seeds: list[tuple[int, int]] = []
        #: The loader's own state that was loaded, until a batch has come: only then its own state is current.
        self._loaded: bytes | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self._draw() if self._draws else self._next(again=True)
        self._loaded = None
        self.in_epoch += 1
        self.position += 1
        return batch

    def _next(self, *, again: bool) -> Any:
        if self._iterator is None:
            self._begin()
        assert self._iterator is not None
        for batch in self._iterator:
            return batch
        if not again:
            raise ValueError(f"the loader ({type(self._loader).__name__}) has no batches, expected one at least")
        self._iterator = None
        self.epoch += 1
        self.in_epoch = 0
        return self._next(again=False)

    def _draw(self) -> Any:
        """Draw a batch from numbers of its own: dropout and the like don't move the place in the data."""
        others = _states(None)
        _set_states(None, self._numbers)
        try:
            return self._loader()
        finally:
            self._numbers = _states(None)
            _set_states(None, others)

    def _begin(self) -> None:
        loader = self._loader
        if self._seed_of_job is not None:
            held = (seed for since, seed in reversed(self._seeds) if since <= self.epoch)
            self._sampler.seed = next(held, self._seed_of_job)
        for holder in (loader, self._sampler, getattr(loader, "dataset", None)):
            set_epoch = getattr(holder, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self.epoch)
        self._numbers = {} if self._stateful else _states(loader)
        self._iterator = iter(loader)

    def skip(self, count: int) -> None:
        """Leave the next ``count`` batches out."""
        for _ in range(count):
            next(self)

    def reseeds(self) -> bool:
        """Return whether the order of the next batches can be drawn from a new seed.

        Of a function, of a ``DataLoader`` that shuffles and of a ``DistributedSampler``: not where a loader or sampler
        keeps random numbers of its own, nor where the origin of the order is unknown.
        """
        kind = type(self._sampler).__name__
        shuffles = kind == "RandomSampler" or (kind == "DistributedSampler" and self._sampler.shuffle)
        return self._draws or (shuffles and not self._stateful and not _generators(self._loader))

    def reseed(self, seed: int, rank: int = 0) -> None:
        """Draw the next batches from random numbers of a seed: those of a function now, else from the next epoch on.

        An epoch that has begun keeps its order, or samples would come twice in it. A ``RandomSampler`` draws its order
        from the random numbers of the process: those the caller seeds.
        """
        if self._draws:
            self._numbers = _seeded(seed + rank)
        # A DistributedSampler adds the epoch: two small seeds would have each other's orders.
        spread = random.Random(seed).getrandbits(32)
        self._seeds.append((self.epoch + (self.in_epoch > 0), spread))

    def state_dict(self) -> dict[str, Any]:
        """Return the place: numbers, and ``loader``: its own state or the random numbers of the epoch, as bytes."""
        kept = self._loaded
        if kept is None:
            kept = pickle.dumps(self._loader.state_dict() if self._stateful else self._numbers)
        place = {"epoch": self.epoch, "in_epoch": self.in_epoch, "position": self.position}
        return {**place, "stateful": self._stateful, "loader": kept, "seeds": [*self._seeds]}

    def load_state_dict(self, state: dict[str, Any], *, share: float = 1.0) -> None:
        """Go to a place; only from where you trust: the loader's own state is a pickle.

        Args:
            share: of another rank's place, batches per batch there: ranks then / ranks now. With it the
                loader's own state is not used.

        Raises:
            ValueError: the epoch has fewer batches than were handed out.
        """
        self._iterator = self._loaded = None
        self.epoch, self.position = int(state["epoch"]), int(state["position"] * share)
        done = int(state["in_epoch"] * share)
        self._seeds = [*state.get("seeds", ())]
        own = share == 1.0 and bool(state["stateful"]) == self._stateful
        if self._draws:
            self.in_epoch = done
            if own:
                self._numbers = pickle.loads(state["loader"])
        elif self._stateful and own:
            now = _states(self._loader)
            kept = pickle.loads(state["loader"])
            self._loader.load_state_dict(kept)
            _let_go_back(self._loader, kept)
            self._begin()
            self._loaded = state["loader"]
            _set_states(self._loader, _of_process(now))  # it had begun its epoch before the checkpoint
            self.in_epoch = done
        else:
            self._pass_over(done, pickle.loads(state["loader"]) if own else {})

    def _pass_over(self, count: int, began: dict[str, Any]) -> None:
        """Begin the epoch again as it began, and advance to the place."""
        self.in_epoch = 0
        if count == 0:
            return  # the next batch begins an epoch with the random numbers of then
        now = _states(self._loader)
        _set_states(self._loader, began)
        self._begin()
        assert self._iterator is not None
        for number in range(count):
            if next(self._iterator, self) is self:
                raise ValueError(
                    f"epoch {self.epoch} ended after {number} batches, and {count} of it were trained before: "
                    "the data or the batch size is another than that of the checkpoint"
                )
        self.in_epoch = count
        _set_states(self._loader, _of_process(now))


def ids_of(batch: Any) -> Any:
    """Return the identifiers of the samples of a batch: whole numbers in CPU memory; None without any.

    Of a mapping the entry named like ids or tokens. Without a name, of a sequence, the first such tensor in which each
    sample has a value of its own: classes come twice. One number a sample next to real numbers is a label in any case.
    """
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return next((found for name in _IDS if name in batch and (found := _whole(batch[name])) is not None), None)
    every = list(batch) if isinstance(batch, list | tuple) else [batch]
    labelled = any(_is_real(one) for one in every)
    for one in every:
        found = ids_of(one) if isinstance(one, list | tuple | dict) or hasattr(one, "keys") else _whole(one)
        if found is None or (labelled and found.ndim == 1):
            continue
        if (found.ndim == 2 and not labelled) or _are_distinct(found):  # rows of tokens are too many to be compared
            return found
    return None


def _is_real(one: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(one, torch.Tensor) and bool(one.is_floating_point())


def _are_distinct(found: Any) -> bool:
    samples = int(found.shape[0])
    return samples > 0 and int(sys.modules["torch"].unique(found, dim=0).shape[0]) == samples


def _whole(batch: Any) -> Any:
    """Return a tensor of whole numbers in CPU memory, None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(batch, torch.Tensor) or hasattr(batch, "to_local"):
        return None
    whole = not (batch.is_floating_point() or batch.is_complex() or batch.dtype is torch.bool)
    return batch if batch.is_cpu and whole and batch.ndim in (1, 2) else None


def _let_go_back(loader: Any, state: Any) -> None:
    """Let a ``StreamingDataset`` take up a state that it has passed in this process.

    It takes an epoch before the next one that it would begin for old, and continues with that one without a word
    (mosaicml-streaming 0.13, ``StreamingDataset._resume``). Before its first epoch its state has epoch -1.
    """
    data: Any = getattr(loader, "dataset", None)
    if hasattr(data, "next_epoch") and isinstance(state, dict) and "epoch" in state:
        data.next_epoch = max(0, state["epoch"])


def _states(loader: Any) -> dict[str, Any]:
    """Return the random numbers that an epoch's order can come from."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    found: dict[str, Any] = {"random": random.getstate()}
    if torch is not None:
        found["torch"] = torch.get_rng_state()
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    for name, generator in _generators(loader).items():
        found[name] = generator.get_state()
    return found


def _seeded(of: int | None = None) -> dict[str, Any]:
    """Return states that follow from a seed, else from this process's; others than those that it continues with."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if of is None:
        of = random.getstate()[1][0] if torch is None else torch.initial_seed()
    seed = random.Random(of).getrandbits(32)
    found: dict[str, Any] = {"random": random.Random(seed).getstate()}
    if torch is not None:
        found["torch"] = torch.Generator().manual_seed(seed).get_state()
    if numpy is not None:
        found["numpy"] = numpy.random.RandomState(seed).get_state()
    return found


def _of_process(states: dict[str, Any]) -> dict[str, Any]:
    """Return the random numbers without those of the loader, which are where its place has put them."""
    return {name: state for name, state in states.items() if not name.startswith("generator")}


def _set_states(loader: Any, states: dict[str, Any]) -> None:
    generators = _generators(loader)
    for name, state in states.items():
        if name == "torch":
            sys.modules["torch"].set_rng_state(state)
        elif name == "random":
            random.setstate(state)
        elif name == "numpy":
            sys.modules["numpy"].random.set_state(state)
        elif name in generators:
            generators[name].set_state(state)


def _generators(loader: Any) -> dict[str, Any]:
    """Return the generators of a loader and its sampler by name; one that both share is there once."""
    holders = {"generator": loader, "generator of the sampler": getattr(loader, "sampler", None)}
    found: dict[str, Any] = {}
    for name, holder in holders.items():
        generator = getattr(holder, "generator", None)
        if hasattr(generator, "get_state") and not any(generator is one for one in found.values()):
            found[name] = generator
    return found
