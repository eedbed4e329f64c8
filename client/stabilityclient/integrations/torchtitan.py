"""torchtitan: ``train`` in place of ``trainer.train``, for a script like torchtitan's own ``train.py``.

    from stabilityclient.integrations.torchtitan import train

    train(trainer, run=run)

What it does and what it can't: docs/integrations/torchtitan.md. A step is an optimizer step, counted as
``trainer.step`` counts: the first one is 1, and the folder ``step-100`` holds the state after step 100.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

from stabilityclient.integrations.shared.guarded import guarded, stand_around
from stabilityclient.integrations.shared.ranks import agreed
from stabilityclient.integrations.shared.refusals import refusal
from stabilityclient.integrations.torchtitan_data import Feed, as_at_the_start
from stabilityclient.integrations.torchtitan_folders import discard_later, read, write
from stabilityclient.integrations.torchtitan_hooks import Hooks
from stabilityclient.rollback.decision import Rollback
from stabilityclient.rollback.orders import Rewind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["train"]

#: Parts of a checkpoint without which there is no going back.
_NEEDED = ("optimizer", "lr_scheduler", "train_state")


def train(trainer: Any, *, run: Run) -> None:
    """Train as ``trainer.train()`` does, report it to ``run``, and obey rollbacks and stops.

    On a rollback all ranks leave torchtitan's loop before the same step, load the rollback's checkpoint and go on. Call
    it on every rank.

    Args:
        trainer: what the configuration builds.
        run: of :func:`stabilityclient.init`.

    Raises:
        Exception: what ``trainer.train`` raises; a rollback that was being carried out has then failed.
    """
    job = _Obeying(run, trainer)
    with job.watching():
        while True:
            try:
                trainer.train()
                return
            except Rewind as rewind:
                job.rewind(rewind.rollback)


class _Obeying(Hooks):
    """Asks for orders before each step, and goes back."""

    def __init__(self, run: Run, trainer: Any) -> None:
        super().__init__(run, trainer)
        self._can: tuple[str, ...] | None = None
        self._rollback: Rollback | None = None
        self._feed: Feed | None = None
        #: Product of the factors that were ordered on the way to this state.
        self._lr_scale = 1.0
        self._schedules = [one for one in trainer.lr_schedulers if hasattr(one, "base_lrs")]
        #: torchtitan's checkpoints have no rates of the schedule: they are those of the configuration.
        self._configured = [list(schedule.base_lrs) for schedule in self._schedules]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand around methods of the trainer and of its parts until the end."""
        trainer = self._trainer
        leave = [stand_around(*one) for one in self.around()]
        leave.append(stand_around(trainer, "should_continue_training", self._goes_on))
        leave.append(stand_around(trainer, "batch_generator", self._batches))
        leave.append(stand_around(trainer.checkpointer, "load", self._load))
        try:
            yield
        finally:
            self.enter(None)
            for put_back in leave:
                put_back()
        self._run.boundary(trainer.step + 1, trainer.step + 1)

    # --- the state -----------------------------------------------------------------------------------------------

    def rewind(self, rollback: Rollback) -> None:
        """The next ``train`` loads the checkpoint of this rollback."""
        self.enter(None)
        self._rollback = rollback
        trainer = self._trainer
        trainer.checkpointer.maybe_wait_for_saving()
        as_at_the_start(getattr(trainer.dataloader, "dataset", None))
        processor = trainer.metrics_processor
        processor.ntokens_since_last_log, processor.time_last_log = 0, time.perf_counter()
        processor.data_loading_times.clear()

    def _load(self, original: Callable[..., Any], step: int = -1) -> Any:
        """Load a checkpoint as ``checkpointer.load`` does, and what it has of us."""
        trainer, rollback = self._trainer, self._rollback
        if rollback is not None:
            step = rollback.to_step
        loaded = original(step)
        if loaded and trainer.step:
            before = self._feed
            kept = agreed(lambda: read(self.path_of(trainer.step)))
            self._lr_scale = kept["lr_scale"]
            self._feed = Feed(self._run, trainer, kept["skips"])
            if rollback is not None:
                self._lr_scale *= 1.0 if rollback.lr_scale is None else rollback.lr_scale
                self._feed.leave_out(rollback, before)
                agreed(lambda: discard_later(trainer.checkpointer.folder, trainer.step))
            if rollback is not None or self._lr_scale != 1.0:
                self._set_rates()
        else:
            self._feed = Feed(self._run, trainer, None)
        return loaded

    def _set_rates(self) -> None:
        """Set the rates that the schedules give now, times the scale."""
        for schedule, configured in zip(self._schedules, self._configured, strict=True):
            schedule.base_lrs = [rate * self._lr_scale for rate in configured]
            schedule._last_lr = schedule.get_lr()
            for group, base, rate in zip(
                schedule.optimizer.param_groups, schedule.base_lrs, schedule._last_lr, strict=True
            ):
                group["initial_lr"], group["lr"] = base, rate

    def _batches(self, original: Callable[..., Any], data: Any) -> Any:
        batches = original(data)
        # The validator has a loader of its own.
        return batches if self._feed is None or data is not self._trainer.dataloader else self._feed.over(batches)

    @guarded
    def save_ours(self, step: int) -> None:
        """Write into a checkpoint of torchtitan's what it does not know."""
        skips = {} if self._feed is None else self._feed.state()
        write(self.path_of(step), {"lr_scale": self._lr_scale, "skips": skips})

    # --- orders --------------------------------------------------------------------------------------------------

    def _goes_on(self, original: Callable[..., Any]) -> bool:
        """Say whether there is a next step, between two of them."""
        trainer = self._trainer
        if not original():
            return False
        step = trainer.step + 1
        if self._rollback is not None:
            self._finish()
        elif self._can is None:
            self._offer()
        order = self._run.boundary(step, trainer.config.training.steps + 1)
        if isinstance(order, Rollback):
            self._go_back(order)
        return order is None or isinstance(order, Rollback)

    @guarded
    def _offer(self) -> None:
        self._can = ()
        checkpointer = self._trainer.checkpointer
        if (
            not checkpointer.enable
            or checkpointer.load_only
            or len(self._schedules) != len(self._trainer.lr_schedulers)
        ):
            return
        excluded = checkpointer.exclude_from_loading
        if any(name in excluded for name in _NEEDED):
            return
        self._can = ("lr_scale", *(() if "dataloader" in excluded else ("skip_batches", "skip_range")))
        self._run.can_roll_back(*self._can)

    @guarded
    def _go_back(self, rollback: Rollback) -> None:
        why = refusal(rollback, self._can or ()) or agreed(lambda: self._trouble(rollback))
        if why:
            self._run.refused(rollback, why)
        else:
            raise Rewind(rollback)

    def _trouble(self, rollback: Rollback) -> str:
        path, own = str(rollback.checkpoint), self.path_of(rollback.to_step)
        if os.path.realpath(path) != os.path.realpath(own):
            return f"torchtitan loads from its own folder only, where step {rollback.to_step} is {own} and not {path}"
        if not os.path.isfile(os.path.join(own, ".metadata")):
            return f"{own} is not whole: it has no .metadata"
        return ""

    @guarded
    def _finish(self) -> None:
        """The checkpoint is loaded: wait for the first batch behind it, and say what was done."""
        rollback, self._rollback = self._rollback, None
        assert rollback is not None
        assert self._feed is not None
        self._feed.fetch()
        applied: dict[str, Any] = {}
        if rollback.lr_scale is not None:
            rates = [float(group["lr"]) for one in self._trainer.optimizers for group in one.param_groups]
            applied = {"lr_scale": rollback.lr_scale, "rates": rates}
        skips = (("skip_batches", rollback.skip_batches), ("skip_range", rollback.skip_range))
        applied |= {name: value for name, value in skips if value is not None}
        self._run.restored(rollback, applied=applied)
