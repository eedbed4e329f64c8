"""What a Composer job reports: metrics, steps, phases and checkpoints, from its events and around its savers."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from functools import partial

from stabilityclient.integrations.shared.guarded import guarded, stand_around
from stabilityclient.integrations.shared.phases import OnePhase
from stabilityclient.integrations.shared.ranks import agreed, rank_and_world
from stabilityclient.integrations.shared.unsaved import Unsaved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Hooks", "link_of"]

#: Names of Composer's and of its OptimizerMonitor, and ours for them.
_OURS = {"loss/train/total": "loss", "l2_norm/grad/global": "grad_norm"}
#: What ranks other than the first one say: Composer's metrics are the same on all.
_OF_RANKS = ("loss", "lr")


class Hooks:
    """Reports one trainer. Composer runs loggers behind all callbacks, so what those log in an event is there."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._unsaved = Unsaved(run)
        self._enter = OnePhase(run).enter
        #: The step that is under way, or the last one.
        self._step = 0
        self._within = False
        self._values: dict[str, Any] = {}
        #: The state is not back yet: what is logged now belongs to no segment.
        self._waits = False
        self._savers: list[Any] = []
        self._state: dict[str, Any] = {}

    def before_save(self) -> None:
        """A checkpoint is about to be saved; called on all ranks."""
        raise NotImplementedError

    # --- metrics and steps ---------------------------------------------------------------------------------------

    @guarded
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Take what somebody logs; Composer counts some of a step's values under the step before."""
        if self._within:
            self._values.update(metrics)
        elif self._step and not self._waits and _is_first():
            self._log(metrics)

    def _log(self, metrics: dict[str, Any]) -> None:
        numbers = {name: value for name, value in metrics.items() if _is_number(value)}
        if numbers:
            self._run.log(self._step, numbers)

    @guarded
    def fit_start(self, state: Any, logger: Any) -> None:
        self._step, self._within, self._values = int(state.timestamp.batch), False, {}

    def batch_start(self, state: Any, logger: Any) -> None:
        self._enter(None)
        self._step = int(state.timestamp.batch) + 1

    @guarded
    def begin(self, state: Any) -> None:
        """A step begins."""
        self._waits, self._within = False, True
        self._values = {"lr": state.optimizers[0].param_groups[0]["lr"]}  # a schedule moves on before the step ends

    @guarded
    def batch_end(self, state: Any, logger: Any) -> None:
        self._enter(None)
        self._within = False
        values, self._values = self._values, {}
        for theirs, ours in _OURS.items():
            if theirs in values:
                values.setdefault(ours, values[theirs])
        self._log(values if _is_first() else {name: values[name] for name in _OF_RANKS if name in values})

    @guarded
    def fit_end(self, state: Any, logger: Any) -> None:
        self._enter(None)
        self._step = int(state.timestamp.batch)
        self._run.boundary(self._step + 1, self._step + 1)

    # --- phases --------------------------------------------------------------------------------------------------

    @guarded
    def after_dataloader(self, state: Any, logger: Any) -> None:
        self._enter(None)

    @guarded
    def before_forward(self, state: Any, logger: Any) -> None:
        self._enter("forward")

    @guarded
    def before_backward(self, state: Any, logger: Any) -> None:
        self._enter("backward")

    @guarded
    def after_train_batch(self, state: Any, logger: Any) -> None:
        self._enter("optimizer")

    @guarded
    def eval_before_all(self, state: Any, logger: Any) -> None:
        self._enter("eval")

    @guarded
    def eval_after_all(self, state: Any, logger: Any) -> None:
        self._enter(None)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, trainer: Any, around: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
        """Stand around the trainer's savers, and what is given, until the end."""
        self._savers = [one for one in trainer.state.callbacks if hasattr(one, "saved_checkpoints")]
        leave = [stand_around(saver, "_save_checkpoint", self._save) for saver in self._savers]
        leave += [stand_around(*one) for one in around]
        spins = trainer.spin_dataloaders
        try:
            yield
        finally:
            self.leave()
            trainer.spin_dataloaders = spins
            for put_back in leave:
                put_back()

    def leave(self) -> None:
        """Composer's loop was left."""
        self._enter(None)
        self._within, self._waits = False, True

    def _save(self, original: Callable[..., Any], state: Any, *more: Any, **named: Any) -> None:
        saver = original.__self__  # type: ignore[attr-defined]
        with self._run.phase("checkpoint"):
            self.before_save()
            original(state, *more, **named)
            self._report(saver, state)

    @guarded
    def _report(self, saver: Any, state: Any) -> None:
        if _is_whole(saver) and _is_first() and saver.saved_checkpoints:
            path = os.path.abspath(saver.saved_checkpoints[-1])
            self._unsaved.saved(path)
            self._run.checkpoint(int(state.timestamp.batch), path)

    def saver(self) -> Any:
        """Return what saves a checkpoint that can be gone back to, None where nothing does."""
        return next(filter(_is_whole, self._savers), None)

    @guarded
    def stand_on(self, path: str, state: Any) -> None:
        """Training goes on from a checkpoint: what savers and monitors know of later steps holds no more."""
        for saver in self._savers:
            saver.last_checkpoint_batch = None  # or a step that was saved before is not saved again
            known, now = saver.all_saved_checkpoints_to_timestamp, state.timestamp.batch
            left = [name for name, at in known.items() if at.batch > now]
            for name in left:
                del known[name]
            saver.saved_checkpoints = [name for name in saver.saved_checkpoints if name not in left]
            # All ranks wait: the next fit looks into the folder on each of them.
            agreed(partial(_put_aside, saver, state, left, path))
        for callback in state.callbacks:
            for name, window in vars(callback).items():
                if name.startswith("history_") and hasattr(window, "clear"):
                    window.clear()  # SpeedMonitor's: samples per second would be below zero


def _is_whole(saver: Any) -> bool:
    # Parts of a state, and what is uploaded and deleted here, are nothing to go back to.
    return not (saver.weights_only or saver.ignore_keys or saver.remote_uploader is not None)


def link_of(saver: Any, state: Any) -> str:
    """Return the link to the newest checkpoint, by which ``autoresume`` goes on, "" where there is none."""
    link = "" if saver.latest_filename is None else str(saver.latest_filename.format(state))
    return link if os.path.islink(link) else ""


def _put_aside(saver: Any, state: Any, left: list[str], path: str) -> None:
    """Rename files of steps that were left, and let the link by which ``autoresume`` goes on lead to ``path``.

    Composer does not train in a folder that has later ones. A process that has just started knows of none.
    """
    for name in {*left, *_later(saver, state)}:
        if os.path.isfile(name):
            folder, file = os.path.split(name)
            os.replace(name, os.path.join(folder, f"left-{file}"))
    if link := link_of(saver, state):
        os.remove(link)
        os.symlink(os.path.relpath(path, os.path.dirname(link)), link)


def _later(saver: Any, state: Any) -> Iterator[str]:
    """Yield files of later steps that lie in a saver's folder, where their names tell the step."""
    folder, name = os.path.dirname(saver.filename.format(state)), re.escape(saver.filename.filename)
    step = r"(\d+)"
    pattern = re.compile(re.sub(r"\\\{\w+\\\}", ".+", name.replace(r"\{batch\}", step, 1)))
    for file in os.listdir(folder) if step in pattern.pattern and os.path.isdir(folder) else ():
        match = pattern.fullmatch(file)
        if match and int(match[1]) > int(state.timestamp.batch):
            yield os.path.join(folder, file)


def _is_first() -> bool:
    return rank_and_world()[0] == 0


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or hasattr(value, "item")
