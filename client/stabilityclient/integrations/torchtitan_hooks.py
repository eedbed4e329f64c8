"""What a torchtitan job reports: metrics, steps, phases and checkpoints, from around methods of its trainer."""

from __future__ import annotations

import os
from importlib import import_module

from stabilityclient.integrations.shared.guarded import guarded
from stabilityclient.integrations.shared.phases import OnePhase
from stabilityclient.integrations.shared.ranks import rank_and_world
from stabilityclient.integrations.shared.unsaved import Unsaved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Hooks"]

#: Of labels: a token that has no loss (torchtitan/components/loss.py, IGNORE_INDEX).
_IGNORED = -100


class Hooks:
    """Reports one ``train``."""

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run = run
        self._trainer = trainer
        self._unsaved = Unsaved(run)
        #: Begins a phase, and ends the one before.
        self.enter = OnePhase(run).enter
        self._within = False
        #: The step whose state was saved, or loaded, last.
        self.saved: int | None = None
        self._values: dict[str, Any] = {}
        #: Sum of this rank's losses so far in this step, and of how many tokens; None where that is not known.
        self._loss: Any = None
        self._tokens: Any = None
        # Elsewhere a rank has a part of the sequence, or of the layers.
        dims = trainer.parallel_dims
        self._has_losses = not (dims.pp_enabled or dims.cp_enabled or dims.tp_enabled)

    def save_ours(self, step: int) -> None:
        """Write what torchtitan does not know into its checkpoint of a step; called on the first rank."""
        raise NotImplementedError

    def path_of(self, step: int) -> str:
        """Return the folder of a step's checkpoint."""
        return os.path.abspath(os.path.join(self._trainer.checkpointer.folder, f"step-{step}"))

    def around(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        """Return what is to be called in place of which methods."""
        trainer = self._trainer
        found: list[tuple[Any, str, Callable[..., Any]]] = [
            (trainer, "train_step", self._train_step),
            (trainer, "forward_backward_step", self._forward_backward),
            (trainer.optimizers, "step", self._optimize),
            (import_module("torchtitan.distributed.utils"), "clip_grad_norm_", self._clip),
            (trainer.metrics_processor.logger, "log", self._logged),
            (trainer.checkpointer, "save", self._save),
        ]
        if hasattr(trainer, "validator"):
            found.append((trainer.validator, "validate", self._validate))
        return found

    # --- steps ---------------------------------------------------------------------------------------------------

    def _train_step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._within, self._values, self._loss, self._tokens = True, {}, None, None
        self._values["lr"] = self._rate()  # a schedule moves on before the step ends
        try:
            return original(*given, **named)
        finally:
            self.enter(None)
            self._within = False
            self._flush()

    def _rate(self) -> float:
        return float(next(iter(self._trainer.optimizers)).param_groups[0]["lr"])

    @guarded
    def _flush(self) -> None:
        values, self._values = self._values, {}
        if self._loss is None:
            return  # out of data before the step began
        if self._tokens is not None:
            values["loss"] = self._loss / self._tokens
        self._run.log(self._trainer.step, values)

    def _forward_backward(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.enter("forward")  # and backward: torchtitan does both in one call
        loss = original(*given, **named)
        self.enter(None)
        self._add(loss, named)
        return loss

    @guarded
    def _add(self, loss: Any, named: dict[str, Any]) -> None:
        if not self._has_losses or hasattr(loss, "to_local"):
            self._loss = 0
            return
        # Its loss is a sum divided by the tokens of all ranks. A copy: CUDA graphs write into the same place again.
        total, tokens = loss.detach() * named["global_valid_tokens"], (named["labels"] != _IGNORED).sum()
        first = self._tokens is None
        self._loss, self._tokens = (total, tokens) if first else (self._loss + total, self._tokens + tokens)

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.enter("optimizer")
        norm = original(*given, **named)
        if self._within and not hasattr(norm, "to_local"):  # a DTensor is read by all ranks together
            self._values["grad_norm"] = norm
        return norm

    def _optimize(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.enter("optimizer")
        done = original(*given, **named)
        self.enter(None)
        return done

    def _logged(self, original: Callable[..., Any], metrics: dict[str, Any], step: int) -> Any:
        self._take(metrics, step)
        return original(metrics, step)

    @guarded
    def _take(self, metrics: dict[str, Any], step: int) -> None:
        if rank_and_world()[0] != 0:
            return  # the same on all ranks, but for memory and speed
        if self._within:
            self._values.update(metrics)
        else:
            self._run.log(step, dict(metrics))

    def _validate(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self._run.phase("eval"):
            return original(*given, **named)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self, original: Callable[..., Any], step: int, last_step: bool = False) -> Any:
        with self._run.phase("checkpoint"):
            saved = original(step, last_step=last_step)
            checkpointer = self._trainer.checkpointer
            # Weights alone are nothing to go back to.
            if saved and not (last_step and checkpointer.last_save_model_only):
                self.saved = step
                if rank_and_world()[0] == 0:
                    self.save_ours(step)
                    self._report(step, checkpointer.save_future)
        return saved

    @guarded
    def _report(self, step: int, future: Any) -> None:
        ordered = self._unsaved.ordered

        def written(done: Any = None) -> None:
            if done is None or done.exception() is None:
                if ordered == self._unsaved.ordered:  # one that another thread writes may be of before a rollback
                    self._unsaved.saved(self.path_of(step))
                self._run.checkpoint(step, self.path_of(step))

        if future is None:
            written()
        else:
            future.add_done_callback(written)
