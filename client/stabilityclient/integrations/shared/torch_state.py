"""Checkpoints by ``torch.distributed.checkpoint``: a folder that any number of ranks can load, whole once it has
``.metadata``. Works for plain models, DDP, FSDP2 and tensor parallelism, with and without a process group.
"""

from __future__ import annotations

import io
import random
import sys
import warnings
from contextlib import contextmanager

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from stabilityclient.integrations.shared.ranks import agreed, rank_and_world

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

__all__ = ["Parts", "random_states", "seed_random_numbers", "set_random_states"]

_RANK = "rank"


class Parts:
    """Content of a checkpoint: models, their optimizers, and other objects with a state.

    Args:
        parts: by name, each with ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                what = f"{name} is a {type(part).__name__}, expected something with state_dict and load_state_dict"
                raise TypeError(what)
        self._models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        self.optimizers = {name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
        self._others = {
            name: part for name, part in parts.items() if name not in self._models and name not in self.optimizers
        }
        self.schedules = [part for part in self._others.values() if hasattr(part, "base_lrs")]
        self._trains = {name: self._model_of(name, optimizer) for name, optimizer in self.optimizers.items()}

    def _model_of(self, name: str, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        first = optimizer.param_groups[0]["params"][0]
        for model in self._models.values():
            if any(parameter is first for parameter in model.parameters()):
                return model
        raise ValueError(f"{name} trains no model that is given, expected the model too: Training(..., model=model)")

    def save(self, path: Path, own: Mapping[str, Any]) -> None:
        """Write a checkpoint; all ranks call it, each with its ``own`` state."""
        rank, _ = rank_and_world()
        state = self._tensors()
        for name, part in self._others.items():
            state[name] = _packed(part.state_dict())
        state[f"{_RANK}{rank}"] = _packed({**own, "random": random_states()})
        with _quietly():
            save(state, checkpoint_id=str(path))

    def problem(self, path: str) -> str:
        """Return why a checkpoint can't be loaded, "" if it can; all ranks call it and get one answer."""
        return str(agreed(lambda: self._problem(path)))

    def _problem(self, path: str) -> str:
        try:
            held = set(FileSystemReader(path).read_metadata().state_dict_metadata)
        except Exception as error:
            return f"{path} is no whole checkpoint of torch.distributed.checkpoint: {type(error).__name__}: {error}"
        missing = sorted(set(self._others) - held)
        return f"{path} has no {', '.join(missing)}" if missing else ""

    def load(self, path: str) -> tuple[dict[str, Any], float]:
        """Load a checkpoint on all ranks.

        Returns:
            The state of this rank, and 1.0; of a rank that was not there, the first rank's, and ranks then / ranks
            now. Random numbers are back where they are this rank's.
        """
        rank, world = rank_and_world()
        held = FileSystemReader(path).read_metadata().state_dict_metadata
        then = sum(name.removeprefix(_RANK).isdigit() for name in held if name.startswith(_RANK))
        key = f"{_RANK}{rank if then == world else 0}"
        state = self._tensors()
        for name in (*self._others, key):
            state[name] = b""
        with _quietly():
            load(state, checkpoint_id=path, planner=DefaultLoadPlanner())
        for name, model in self._models.items():
            set_model_state_dict(model, state[name])
        for name, optimizer in self.optimizers.items():
            set_optimizer_state_dict(self._trains[name], optimizer, state[name])
        for name, part in self._others.items():
            part.load_state_dict(_unpacked(state[name]))
        own = _unpacked(state[key])
        if then == world:
            set_random_states(own["random"])
        return own, then / world

    def _tensors(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: get_model_state_dict(model) for name, model in self._models.items()}
        for name, optimizer in self.optimizers.items():
            state[name] = get_optimizer_state_dict(self._trains[name], optimizer)
        return state


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep back the warning that there is one process: it is meant so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _packed(state: Any) -> bytes:
    """Return a state as one value: its content differs between checkpoints."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _unpacked(packed: bytes) -> Any:
    # As torch.distributed.checkpoint itself loads objects other than tensors: a loader may keep anything in its state.
    return torch.load(io.BytesIO(packed), weights_only=False)


def random_states() -> dict[str, Any]:
    """Return the states of the random number generators of Python, NumPy (where it is used), torch and CUDA."""
    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the states of :func:`random_states`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def seed_random_numbers(seed: int) -> None:
    """Seed the random number generators of Python, NumPy (where it is used), torch and CUDA."""
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
