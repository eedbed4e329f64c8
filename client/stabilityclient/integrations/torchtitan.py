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
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.integrations.torchtitan_data import Feed, as_at_the_start
from stabilityclient.integrations.torchtitan_folders import discard_later, newest, read, write
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
        #: Of the checkpoint that was loaded: which order changed it last. What its rollback left out.
        self._ordered = ""
        self._places: tuple[int, int] | None = None
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
        trainer, rollback, before = self._trainer, self._rollback, self._feed
        plan = None if rollback is not None or not trainer.checkpointer.enable else agreed(self._followed_plan)
        if rollback is not None:
            step = rollback.to_step
        elif plan is not None:
            step = plan["checkpoint"]["step"]
        loaded = original(step)
        if not (loaded and trainer.step):
            self._feed = Feed(self._run, trainer, None)
            return loaded
        self.saved = trainer.step
        path = self.path_of(trainer.step)
        kept = agreed(lambda: read(path))
        self._lr_scale, self._ordered = kept["lr_scale"], kept.get("ordered", "")
        self._feed = Feed(self._run, trainer, kept["skips"])
        order = None if rollback is not None else self._unsaved.take_up(path, self._ordered)
        if rollback is not None:
            self._places = self._change(rollback.lr_scale, rollback.skip_range, rollback.skip_batches, before)
        elif order is not None:
            self._scale(order.lr_scale)
            if order.skip_places is not None:
                self._feed.skips.leave_out(*order.skip_places)
        elif plan is not None and plan["id"] != self._unsaved.ordered:
            self._change(plan.get("lr_scale"), plan.get("skip_range"), plan.get("skip_batches"), None)
            self._unsaved.keep_seed()
            self._unsaved.ordered = plan["id"]
        if rollback is not None or plan is not None:
            agreed(lambda: discard_later(trainer.checkpointer.folder, trainer.step))
        if rollback is not None or self._lr_scale != 1.0:
            self._set_rates()
        return loaded

    def _followed_plan(self) -> dict[str, Any] | None:
        """Return the plan by which this process goes on, with its id, None without one; asked on the first rank.

        Raises:
            ValueError: torchtitan can't load what it names.
        """
        plan = self._unsaved.plan
        named = None if plan is None else plan.get("checkpoint")
        if plan is None or not named:
            return None
        latest = newest(self._trainer.checkpointer.folder)
        if latest and self._unsaved.follows_plan(self.path_of(latest)):
            return None
        step = named["step"]
        if trouble := self._trouble(named["path"] or self.path_of(step), step):
            raise ValueError(f"the plan of the restart can't be followed: {trouble}")
        return plan | {"id": self._unsaved.plan_id}

    def _change(
        self, scale: float | None, steps: Any, batches: int | None, before: Feed | None
    ) -> tuple[int, int] | None:
        """Do what is ordered to the state that was loaded; return the places that are left out, None without any."""
        assert self._feed is not None
        self._scale(scale)
        left = self._feed if before is None else before
        return self._feed.skips.carry_out(self._trainer.step, steps, batches, left.skips)

    def _scale(self, factor: float | None) -> None:
        self._lr_scale *= 1.0 if factor is None else factor

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
        skips = {} if self._feed is None else self._feed.skips.state()
        kept = {"lr_scale": self._lr_scale, "skips": skips, "ordered": self._unsaved.ordered}
        write(self.path_of(step), kept)

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
        off = not checkpointer.enable or checkpointer.load_only
        why = "its configuration saves no checkpoints (checkpoint.enable, load_only)" if off else ""
        self._run._framework_saves(None if why else self._save_on_order, why)
        if off or len(self._schedules) != len(self._trainer.lr_schedulers):
            return
        excluded = checkpointer.exclude_from_loading
        if any(name in excluded for name in _NEEDED):
            return
        self._can = ("lr_scale", *(() if "dataloader" in excluded else ("skip_batches", "skip_range")))
        self._run.can_roll_back(*self._can)

    def _save_on_order(self, step: int) -> None:
        """Save as torchtitan does at its interval, and wait until it is written; nothing where it just did."""
        checkpointer = self._trainer.checkpointer
        if self.saved != step:
            interval, checkpointer.interval = checkpointer.interval, 1
            try:
                checkpointer.save(step)
            finally:
                checkpointer.interval = interval
        checkpointer.maybe_wait_for_saving()

    @guarded
    def _go_back(self, rollback: Rollback) -> None:
        why = refusal(rollback, self._can or ()) or agreed(
            lambda: self._trouble(str(rollback.checkpoint), rollback.to_step)
        )
        if why:
            self._run.refused(rollback, why)
        else:
            raise Rewind(rollback)

    def _trouble(self, path: str, step: int) -> str:
        """Return why torchtitan can't load a checkpoint, "" if it can."""
        own = self.path_of(step)
        if os.path.realpath(path) != os.path.realpath(own):
            return f"torchtitan loads from its own folder only, where step {step} is {own} and not {path}"
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
        self._unsaved.note(rollback.checkpoint, Order.of(rollback, self._places), self._ordered)
        self._run.restored(rollback, applied=applied)
