"""A training loop of one's own with a DeepSpeed engine: saved, resumed and rolled back in three lines.

    from stabilityclient.integrations.deepspeed import Training

    training = Training(run, "checkpoints", engine=engine, loader=loader, save_every=100)
    for step in training.steps(stop=10_001):
        inputs = training.batch()  # and engine.step(), once for each batch

Features and limits: docs/integrations/deepspeed.md.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
import torch.distributed as dist

from stabilityclient.integrations import torch as of_torch
from stabilityclient.integrations.shared.ranks import agreed, rank_and_world
from stabilityclient.integrations.shared.rates import names_of_rates
from stabilityclient.integrations.shared.torch_state import random_states, set_random_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Training"]

#: In DeepSpeed's ``client_state``.
_OURS = "stabilityboard"


class Training(of_torch.Training):
    """Runs the steps of a job, saves them by the engine, and goes back to them on command.

    Args:
        run: of :func:`stabilityclient.init`.
        folder: of the checkpoints; all nodes must see it.
        engine: first result of ``deepspeed.initialize``; it owns model, optimizer and schedule.
        loader, save_every, keep, resume: as of :class:`stabilityclient.integrations.torch.Training`. A step takes as
            many batches as the engine accumulates.
        parts: state that the engine does not own (an average of weights, a schedule that you step), by any names.

    Raises:
        TypeError: a part has no state. ValueError: a checkpoint that can't be loaded; ZeRO-3.
    """

    def __init__(
        self,
        run: Run,
        folder: str | os.PathLike[str],
        *,
        engine: Any,
        loader: Iterable[Any] | Callable[[], Any] | None = None,
        save_every: int = 1_000,
        keep: int | None = None,
        resume: bool = True,
        **parts: Any,
    ) -> None:
        self._engine = engine
        per_step = engine.gradient_accumulation_steps()
        super().__init__(
            run,
            folder,
            loader=loader,
            save_every=save_every,
            keep=keep,
            batches_per_step=per_step,
            resume=resume,
            **parts,
        )

    def steps(self, stop: int | None = None) -> Iterator[int]:
        """Yield the next step, and so on before ``stop``; between two steps save, go back or end as is due.

        Raises:
            RuntimeError: within a step the engine made none, or several.
        """
        engine = self._engine
        for step in super().steps(stop):
            before = engine.global_steps
            yield step
            if engine.global_steps != before + 1:
                often, made = engine.gradient_accumulation_steps(), engine.global_steps - before
                raise RuntimeError(
                    f"the engine made {made} optimizer steps in step {step}, expected one: call training.batch() and "
                    f"engine.step() {often} times a step (its gradient_accumulation_steps)"
                )

    def _takes_seeds(self) -> bool:
        return False  # not tried with an engine

    def _parts_of(self, parts: dict[str, Any]) -> _Engine:
        return _Engine(self._engine, parts)


class _Engine:
    """Saves and loads by the engine, in place of :class:`stabilityclient.integrations.shared.torch_state.Parts`.

    A rank's own state is gathered and goes into the ``client_state``: a checkpoint has no file but DeepSpeed's.
    """

    def __init__(self, engine: Any, parts: Mapping[str, Any]) -> None:
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                what = f"{name} is a {type(part).__name__}, expected something with state_dict and load_state_dict"
                raise TypeError(what)
        if engine.zero_optimization_partition_weights():
            raise ValueError(
                "the engine has ZeRO stage 3, which can't load a checkpoint while it trains: stages 0 to 2"
            )
        self._engine, self._others = engine, dict(parts)
        optimizer, schedule = engine.optimizer, engine.lr_scheduler
        self.optimizers = {"engine": optimizer} if getattr(optimizer, "param_groups", None) else {}
        self.schedules = [part for part in (schedule, *parts.values()) if part is not None and names_of_rates(part)]
        # DeepSpeed's own schedules keep these out of their state: a new engine has them from its configuration.
        kept = () if schedule is None else schedule.state_dict()
        names = [] if schedule is None else [name for name in names_of_rates(schedule) if name not in kept]
        self._configured = {name: list(getattr(schedule, name)) for name in names if name != "_last_lr"}

    def save(self, path: Path, own: Mapping[str, Any]) -> None:
        """Write a checkpoint; all ranks call it, each with its ``own`` state."""
        world = rank_and_world()[1]
        ranks: list[Any] = [None] * world
        # ZeRO's elastic checkpoints have no rates of the parameter groups.
        rates = [group["lr"] for group in self._groups()]
        dist.all_gather_object(ranks, {**own, "rates": rates, "random": random_states()})
        ours = {"ranks": ranks, "parts": {name: part.state_dict() for name, part in self._others.items()}}
        # "latest" is written by Training: a tag that DeepSpeed reads too.
        self._engine.save_checkpoint(str(path.parent), path.name, client_state={_OURS: ours}, save_latest=False)

    def problem(self, path: str) -> str:
        """Return why a checkpoint can't be loaded, "" if it can; all ranks call it and get one answer."""
        return str(agreed(lambda: self._problem(Path(path))))

    def _problem(self, path: Path) -> str:
        models = sorted(path.glob("mp_rank_*_model_states.pt"))
        if not models:
            return f"{path} is no checkpoint of DeepSpeed: it has no mp_rank_00_model_states.pt"
        try:
            held = torch.load(models[0], map_location="cpu", mmap=True, weights_only=False)
        except Exception as error:
            return f"{models[0]} is not whole: {type(error).__name__}: {error}"
        if _OURS not in held:
            return (
                f"{path} was saved by engine.save_checkpoint alone, not by Training: the place in the data is not known"
            )
        if missing := sorted(self._others.keys() - held[_OURS]["parts"].keys()):
            return f"{path} has no {', '.join(missing)}"
        if not self._engine.zero_optimization():
            return ""
        then, now = held["dp_world_size"], self._engine.dp_world_size
        if then != now:
            return f"{path} was written by {then} data-parallel ranks and there are {now}: ZeRO loads with as many only"
        for number in range(then):
            shards = sorted(path.glob(f"*zero_pp_rank_{number}_mp_rank_*_optim_states.pt"))
            if len(shards) != len(models) or not all(zipfile.is_zipfile(shard) for shard in shards):
                return f"{path} is not whole: optimizer states of data-parallel rank {number} are missing or cut off"
        return ""

    def load(self, path: str) -> tuple[dict[str, Any], float]:
        """Load a checkpoint on all ranks; the result is that of ``Parts.load``."""
        rank, world = rank_and_world()
        at = Path(path)
        loaded, client_state = self._engine.load_checkpoint(str(at.parent), at.name)
        if loaded is None:
            raise ValueError(f"DeepSpeed could not load {path}")
        ours = client_state[_OURS]
        for name, part in self._others.items():
            part.load_state_dict(ours["parts"][name])
        then = len(ours["ranks"])
        own: dict[str, Any] = ours["ranks"][rank if then == world else 0]
        for group, rate in zip(self._groups(), own["rates"], strict=True):
            group["lr"] = rate
        for name, rates in self._configured.items():
            setattr(self._engine.lr_scheduler, name, [rate * own["lr_scale"] for rate in rates])
        if hasattr(self._engine.lr_scheduler, "_last_lr"):
            self._engine.lr_scheduler._last_lr = list(own["rates"])
        if then == world:
            set_random_states(own["random"])
        return own, then / world

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
