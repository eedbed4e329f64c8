"""MosaicML Composer: a logger that reports, and ``fit`` in place of ``trainer.fit``, which obeys too.

    from stabilityclient.integrations.composer import fit, logger

    trainer = Trainer(..., loggers=logger(run))
    fit(trainer)

What they do and what they can't: docs/integrations/composer.md. A step is a batch of Composer's, counted as
``timestamp.batch`` counts when it is over: the first one is 1, and ``ep0-ba100-rank0.pt`` holds the state after step
100.
"""

from __future__ import annotations

import os
import zipfile
from importlib import import_module

from stabilityclient.integrations.composer_data import Place, keeps_its_own_place
from stabilityclient.integrations.composer_hooks import Hooks
from stabilityclient.integrations.shared.guarded import guarded
from stabilityclient.integrations.shared.ranks import agreed
from stabilityclient.integrations.shared.rates import scale_rates
from stabilityclient.integrations.shared.refusals import refusal
from stabilityclient.rollback.decision import Rollback
from stabilityclient.rollback.orders import Rewind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["fit", "logger"]


def logger(run: Run) -> Any:
    """Return a logger for ``Trainer(loggers=...)``: what the trainer and its callbacks log becomes metrics of ``run``.

    Phases are reported too; checkpoints are, and orders are obeyed, where the trainer trains by :func:`fit`.
    """
    base: Any = import_module("composer.loggers").LoggerDestination
    return type("StabilityLogger", (_Obeying, base), {})(run)


def fit(trainer: Any, **arguments: Any) -> None:
    """Train as ``trainer.fit`` with these arguments does, and obey rollbacks and stops.

    On a rollback all ranks leave Composer's loop before the same step, load the rollback's checkpoint and go on. Call
    it on every rank.

    Args:
        trainer: with a :func:`logger` among its ``loggers``.

    Raises:
        ValueError: it has none.
        Exception: what ``trainer.fit`` or the load of a checkpoint raises; a rollback that was being carried out has
            then failed.
    """
    board = next((one for one in trainer.logger.destinations if isinstance(one, _Obeying)), None)
    if board is None:
        raise ValueError("the trainer has no logger of ours, expected Trainer(..., loggers=logger(run))")
    with board.obeying(trainer):
        while True:
            try:
                trainer.fit(**arguments)
                return
            except Rewind as rewind:
                board.load(rewind.rollback)
                arguments = {}
            except _Over:
                _end(trainer)
                return


class _Over(BaseException):
    """Leaves Composer's loop before a step that is not to begin."""


def _end(trainer: Any) -> None:
    """Do what Composer does at the end of a fit."""
    event = import_module("composer.core").Event.FIT_END
    trainer.state.stop_training()
    trainer.engine.run_event(event)
    trainer._run_evaluators(event)


class _Obeying(Hooks):
    """Asks for orders before each step, and goes back."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._can: tuple[str, ...] | None = None
        self._rollback: Rollback | None = None
        self._trainer: Any = None
        #: None where Composer finds the place in the data by itself.
        self._place: Place | None = None
        #: What a checkpoint had of us, until it is used.
        self._loaded: dict[str, Any] = {}

    def obeying(self, trainer: Any) -> Any:
        """Return a context within which this trainer obeys."""
        self._trainer = trainer
        around: list[tuple[Any, str, Callable[..., Any]]] = [(trainer, "_iter_dataloader", self._iterate)]
        return self.watching(trainer, around)

    # --- the data ------------------------------------------------------------------------------------------------

    @guarded
    def fit_start(self, state: Any, logger: Any) -> None:
        super().fit_start(state, logger)
        if self._trainer is None:
            return
        loaded, self._loaded = self._loaded, {}
        before, self._place = self._place, None
        if keeps_its_own_place(state) or (self._step and not loaded and before is None):
            return
        place = before if before is not None and before.is_at(self._step, state.dataloader) else None
        if place is None or loaded:
            place = Place(self._run, self._trainer)
        if loaded:
            place.load(loaded)
            if self._rollback is not None:
                place.leave_out(self._rollback, self._step, before)
        self._place = place
        if self._step:
            self._trainer.spin_dataloaders = False  # the batches are those of the place

    def _iterate(self, original: Callable[..., Any], mode: Any) -> Iterator[Any]:
        """Return the batches of an epoch."""
        if self._place is None or mode.name != "TRAIN":
            return original(mode)  # type: ignore[no-any-return]
        return self._place.epoch(original, mode)

    def before_save(self) -> None:
        """Gather on all ranks what the checkpoint gets of us."""
        if self._place is not None:
            self._state = self._place.state()

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state

    @guarded
    def before_dataloader(self, state: Any, logger: Any) -> None:
        # Composer waits for the other ranks there too: who waits is not who has no data.
        self._enter("data" if self._place is None else None)

    # --- steps and orders ----------------------------------------------------------------------------------------

    def batch_start(self, state: Any, logger: Any) -> None:
        super().batch_start(state, logger)
        if self._trainer is None:
            self.begin(state)
            return
        if self._rollback is not None:
            self._finish(state)
        elif self._can is None:
            self._offer(state)
        order = self._run.boundary(self._step)
        if isinstance(order, Rollback):
            self._go_back(order)
        elif order is not None:
            raise _Over
        self.begin(state)

    @guarded
    def _offer(self, state: Any) -> None:
        self._can = ()
        if state.fsdp_enabled or getattr(state, "deepspeed_enabled", False) or state.profiler is not None:
            return
        skips = ("skip_batches", "skip_range") if self._place is not None else ()
        self._can = ("lr_scale", *skips)
        self._run.can_roll_back(*self._can)

    @guarded
    def _go_back(self, rollback: Rollback) -> None:
        why = refusal(rollback, self._can or ()) or agreed(lambda: _trouble(str(rollback.checkpoint)))
        if why:
            self._run.refused(rollback, why)
        else:
            raise Rewind(rollback)

    def load(self, rollback: Rollback) -> None:
        """Load the checkpoint of a rollback on all ranks."""
        self.leave()
        trainer, self._rollback = self._trainer, rollback
        state, name = trainer.state, trainer.state.run_name
        if "GROUP_RANK" in os.environ:  # torchrun's name of what Composer wants to know to load a checkpoint
            os.environ.setdefault("NODE_RANK", os.environ["GROUP_RANK"])
        # As at a start: Composer's own way to the place in the data begins with these random numbers.
        import_module("composer.utils.reproducibility").seed_all(state.seed)
        trainer._rng_state = import_module("composer.utils.checkpoint").load_checkpoint(
            rollback.checkpoint, state, trainer.logger, algorithm_passes=trainer.engine.algorithm_passes
        )
        state.run_name = name
        self.stand_on(str(rollback.checkpoint), state)

    @guarded
    def _finish(self, state: Any) -> None:
        """The checkpoint is loaded and the first batch behind it has come: say what was done."""
        rollback, self._rollback = self._rollback, None
        assert rollback is not None
        applied: dict[str, Any] = {}
        if rollback.lr_scale is not None:
            applied["rates"] = scale_rates(state.optimizers, state.schedulers, rollback.lr_scale)
            applied["lr_scale"] = rollback.lr_scale
        if self._place is not None:
            skips = (("skip_batches", rollback.skip_batches), ("skip_range", rollback.skip_range))
            applied |= {name: value for name, value in skips if value is not None}
        step = self._step - 1
        if step == rollback.to_step:
            self._run.restored(rollback, applied=applied)
        else:
            self._run.refused(rollback, f"{rollback.checkpoint} holds the state of step {step}")
            self._run.rolled_back(step, "another checkpoint than the one that was ordered", **applied)


def _trouble(path: str) -> str:
    """Return why a checkpoint can't be loaded, "" where nothing is seen."""
    if not os.path.exists(path):
        return f"{path} is not there"
    if path.endswith(".pt") and not zipfile.is_zipfile(path):
        return f"{path} is not whole"
    return ""
