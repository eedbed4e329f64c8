"""What a job of Hugging Face's Trainer reports: its callback, and what stands around some of the trainer's methods."""

from __future__ import annotations

import os
from contextlib import contextmanager

from stabilityclient.integrations.shared.guarded import guarded, stand_around
from stabilityclient.integrations.shared.phases import OnePhase
from stabilityclient.integrations.shared.unsaved import Unsaved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Hooks"]

#: What each step has anyway; Trainer logs them once in a while, and rounded.
_OF_STEPS = frozenset({"loss", "grad_norm", "learning_rate"})


class Hooks:
    """Reports steps, phases, logs and checkpoints of one ``train``."""

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run = run
        self._trainer = trainer
        self._unsaved = Unsaved(run)
        self._enter = OnePhase(run).enter
        self._losses: list[Any] = []
        self._grad_norm: Any = None
        self._rate: Any = None
        #: The state is not back yet: what is logged now belongs to no segment.
        self._waits = False
        #: The step of the newest checkpoint, on ranks that write none, too.
        self._saved_at: int | None = None

    def fetch(self, original: Callable[..., Any], iterator: Any, *more: Any, **named: Any) -> Any:
        """Return the batches of the next step as ``get_batch_samples`` does."""
        raise NotImplementedError

    # --- around methods of the trainer ---------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be the trainer's callback, and stand around methods that no callback tells of, until the end."""
        trainer, run = self._trainer, self._run
        around: list[tuple[Any, str, Callable[..., Any]]] = [
            (trainer, "get_batch_samples", self.fetch),
            (trainer, "training_step", self._training_step),
            (trainer, "evaluate", _within(run, "eval")),
            (trainer, "_save_checkpoint", _within(run, "checkpoint")),
            (trainer.accelerator, "backward", self._backward),
            (trainer.accelerator, "clip_grad_norm_", self._clip),
        ]
        leave = [stand_around(*one) for one in around if hasattr(one[0], one[1])]
        trainer.add_callback(self)
        try:
            yield
        finally:
            self._enter(None)
            trainer.remove_callback(self)
            for put_back in leave:
                put_back()

    def _training_step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("forward")
        loss = original(*given, **named)
        self._enter(None)
        self._losses.append(loss)
        return loss

    def _backward(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("backward")
        return original(*given, **named)

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._grad_norm = original(*given, **named)
        return self._grad_norm

    # --- callback ------------------------------------------------------------------------------------------------

    @guarded
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rate = self._trainer.optimizer.param_groups[0]["lr"]  # a schedule moves on before the step ends
        self._enter("optimizer")

    @guarded
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        values: dict[str, Any] = {}
        if self._losses:
            # Trainer divides the loss of a micro-batch by what the whole step has.
            values["loss"] = self._losses[0] if len(self._losses) == 1 else sum(self._losses)
        if self._grad_norm is not None:
            values["grad_norm"] = self._grad_norm
        if self._rate is not None:
            values["learning_rate"] = self._rate
        self._losses, self._grad_norm = [], None
        if values:
            self._run.log(state.global_step, values)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        # The same on all ranks.
        if logs and state.is_world_process_zero and not self._waits:
            values = {
                name: value
                for name, value in logs.items()
                if name not in _OF_STEPS and isinstance(value, int | float) and not isinstance(value, bool)
            }
            if values:
                self._run.log(state.global_step, values)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved_at = state.global_step
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        # Weights alone are no state to go back to. What others than the first rank write is small and written before.
        if args.should_save and not args.save_only_model and os.path.isdir(path):
            self._unsaved.saved(path)
            self._run.checkpoint(state.global_step, path)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)
        self._run.boundary(state.global_step + 1, state.global_step + 1)


def _within(run: Run, phase: str) -> Callable[..., Any]:
    def call(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with run.phase(phase):
            return original(*given, **named)

    return call
