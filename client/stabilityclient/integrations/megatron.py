"""Megatron-LM: ``pretrain`` as it is, watched. For ``pretrain_gpt.py`` and others that call ``megatron.training``.

    import stabilityclient
    from stabilityclient.integrations.megatron import watched

    pretrain = watched(pretrain, stabilityclient.init(project="llm", name="7b"))  # right before it is called

A step is Megatron's iteration: the first one is 1, and ``iter_0000100`` holds the state after step 100. The job goes
back by a restart, whose plan it follows: docs/integrations/megatron.md.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import wraps
from importlib import import_module

from stabilityclient.integrations.megatron_plan import Restart
from stabilityclient.integrations.megatron_report import Report
from stabilityclient.integrations.shared.guarded import stand_around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["watched"]


def watched(pretrain: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """Return ``pretrain`` that reports to ``run``, and follows the plan of the restart that brought this job up.

    Within the call some functions of ``megatron.training`` have ours around them; they do what they did.

    Args:
        pretrain: of ``megatron.training``, or what is made of it.
        run: of :func:`stabilityclient.init`, on every rank. It is finished when ``pretrain`` ends in order.

    Raises:
        RuntimeError: from the call, on all ranks: the plan can't be followed.
    """

    @wraps(pretrain)
    def call(*given: Any, **named: Any) -> Any:
        try:
            with ExitStack() as stack:
                for one in _around(run):
                    stack.callback(stand_around(*one))
                result = pretrain(*given, **named)
        except SystemExit as end:
            if end.code in (None, 0):  # --exit-interval and the like; other codes tell the launcher what went wrong
                run.finish()
            raise
        run.finish()
        return result

    return call


def _around(run: Run) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return what stands around what: the module, the name in it, and what is called with the function first."""
    training: Any = import_module("megatron.training.training")
    checkpointing: Any = import_module("megatron.training.checkpointing")
    get_args: Any = import_module("megatron.training.global_vars").get_args
    report, restart = Report(run, training, get_args), Restart(run, training, get_args)

    def set_up(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with run.phase("load"):
            return restart.set_up(original, *given, **named)

    around: list[tuple[Any, str, Callable[..., Any]]] = [
        (training, "setup_model_and_optimizer", set_up),
        (checkpointing, "check_checkpoint_args", restart.check_checkpoint_args),
        (training, "train", report.train),
        (training, "train_step", report.train_step),
        (training, "dummy_train_step", report.dummy_train_step),
        (training, "training_log", report.training_log),
        (training, "evaluate", report.evaluate),
        (training, "evaluate_and_print_results", report.evaluate_and_print_results),
        (training, "save_checkpoint", report.save_checkpoint),
        (training, "maybe_finalize_async_save", report.maybe_finalize_async_save),
        (training, "checkpoint_and_decide_exit", report.checkpoint_and_decide_exit),
    ]
    return [one for one in around if hasattr(one[0], one[1])]
