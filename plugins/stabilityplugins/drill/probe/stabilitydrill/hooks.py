"""Puts the probe's hooks into torch and the client once the job imports them. The job's code is not touched.

Nothing here draws a random number, changes a tensor or lets its own exception reach the job: unseen state is
written down as trouble.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

from .recorder import Recorder

__all__ = ["install"]

#: Depth of calls of modules in this thread: only the outermost one sees the batch.
_DEPTH = threading.local()
#: Nesting of arguments in which tensors are looked for.
_MAX_NESTING = 4


def install(folder: str) -> None:
    """Hook into the job's later imports; ``folder`` gets the lines."""
    hooks = _Hooks(folder)
    sys.meta_path.insert(
        0,
        _Finder(
            {
                "torch": hooks.torch_came,
                "torch.distributed.checkpoint.state_dict_saver": hooks.saver_came,
                "stabilityclient.run": hooks.client_came,
            }
        ),
    )


class _Finder:
    """Finds the named modules as the others do, and calls back when one is loaded."""

    def __init__(self, wanted: dict[str, Callable[[Any], None]]) -> None:
        self._wanted = wanted
        self._came: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the next finder gives, its loader wrapped."""
        if name not in self._wanted:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for found in (each.find_spec(name, path, target) for each in others) if found), None)
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                if name not in self._came:  # some only ask whether it is there: the spec is made more than once
                    self._came.add(name)
                    try:
                        self._wanted[name](module)
                    except Exception as error:  # never the job's trouble: the drill reports that it saw nothing
                        print(f"stabilityboard drill: the probe can't watch {name}: {error!r}", file=sys.stderr)

            # On the instance, which belongs to this module alone: everybody else finds the loader that was there.
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Hooks:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._recorder: Recorder | None = None

    def torch_came(self, torch: Any) -> None:
        """Hook into optimizers, modules, losses, schedules, scalers and ``torch.save``."""
        drill = int(os.environ.get("STABILITY_DRILL_LEG", "0").partition("-")[0])
        enough = os.environ.get("STABILITY_DRILL_ENOUGH", "")
        recorder = self._recorder = Recorder(torch, self._folder, enough, drill)
        guarded = functools.partial(_guarded, recorder)

        def kept(made: list[Any]) -> Callable[..., None]:
            return guarded(lambda one, *_, **__: made.append(weakref.ref(one)))

        _after(torch.optim.Optimizer, "__init__", kept(recorder.optimizers))
        _after(torch.optim.lr_scheduler.LRScheduler, "__init__", kept(recorder.schedulers))
        _after(torch.amp.GradScaler, "__init__", kept(recorder.scalers))
        # The package hides the module of this name behind the class.
        steps = sys.modules["torch.optim.optimizer"]
        steps.register_optimizer_step_pre_hook(_before_steps(guarded(recorder.before_step)))
        steps.register_optimizer_step_post_hook(guarded(lambda one, *_, **__: recorder.after_step(one)))
        _before(torch.Tensor, "backward", guarded(lambda loss, *_, **__: recorder.took_loss(loss)))
        _around_calls(torch, guarded(recorder.took_batch))
        _after(torch, "save", guarded(lambda state, file=None, *_, **__: recorder.note("save", None, _path(file))))

    def saver_came(self, module: Any) -> None:
        """Hook into ``torch.distributed.checkpoint.save``."""
        recorder = self._recorder
        if recorder is not None:
            saved = _guarded(
                recorder,
                lambda state=None, *_, checkpoint_id=None, **__: recorder.note("save", None, _path(checkpoint_id)),
            )
            _after(module, "save", saved)

    def client_came(self, module: Any) -> None:
        """Hook into the run's ``log`` and ``checkpoint``: the job's step number after each count of rounds."""

        def logged(run: Any, step: Any, *_: Any, **__: Any) -> None:
            if self._recorder is not None:
                self._recorder.note("log", int(step))

        def saved(run: Any, step: Any, path: Any = "", *_: Any, **__: Any) -> None:
            if self._recorder is not None:
                self._recorder.note("checkpoint", int(step), _path(path))

        _after(module.Run, "log", lambda *args, **named: _guarded(self._recorder, logged)(*args, **named))
        _after(module.Run, "checkpoint", lambda *args, **named: _guarded(self._recorder, saved)(*args, **named))


def _guarded(recorder: Recorder | None, do: Callable[..., Any]) -> Callable[..., None]:
    """Return ``do`` without gradients, and with its exceptions written down."""

    def call(*args: Any, **named: Any) -> None:
        try:
            if recorder is None:
                do(*args, **named)
                return
            with recorder.no_grad():
                do(*args, **named)
        except Exception as error:
            if recorder is not None:
                recorder.trouble(f"{type(error).__name__}: {error}")

    return call


def _after(owner: Any, name: str, then: Callable[..., None]) -> None:
    before = getattr(owner, name)

    @functools.wraps(before)
    def call(*args: Any, **named: Any) -> Any:
        result = before(*args, **named)
        then(*args, **named)
        return result

    setattr(owner, name, call)


def _before(owner: Any, name: str, first: Callable[..., None]) -> None:
    after = getattr(owner, name)

    @functools.wraps(after)
    def call(*args: Any, **named: Any) -> Any:
        first(*args, **named)
        return after(*args, **named)

    setattr(owner, name, call)


def _before_steps(before: Callable[..., None]) -> Callable[..., Any]:
    """Return the hook that calls ``before`` when the gradients are there: with a closure that is after its first call.

    Lightning gives every optimizer a closure that runs forward and backward.
    """

    def hook(optimizer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else named.get("closure")
        if not callable(closure):
            before(optimizer)
            return None
        calls: list[None] = []

        def watched(*given: Any, **by_name: Any) -> Any:
            result = closure(*given, **by_name)
            if not calls:
                calls.append(None)
                before(optimizer)
            return result

        if len(args) > 1:
            return (args[0], watched, *args[2:]), named
        return args, {**named, "closure": watched}

    return hook


def _around_calls(torch: Any, took: Callable[..., None]) -> None:
    """Give the tensors that the outermost module is called with, in training, to ``took``."""
    forward = torch.nn.Module.__call__
    compiling = getattr(torch.compiler, "is_compiling", lambda: False)

    def call(module: Any, *args: Any, **named: Any) -> Any:
        if compiling():
            return forward(module, *args, **named)
        depth = getattr(_DEPTH, "now", 0)
        if depth == 0 and module.training and torch.is_grad_enabled():
            tensors: list[Any] = []
            _collect(torch, (args, named), tensors, _MAX_NESTING)
            took(module, tensors)
        _DEPTH.now = depth + 1
        try:
            return forward(module, *args, **named)
        finally:
            _DEPTH.now = depth

    torch.nn.Module.__call__ = call


def _collect(torch: Any, value: Any, found: list[Any], nesting: int) -> None:
    """Append the tensors in ``value`` that are data: one with a gradient was computed from the weights."""
    if torch.is_tensor(value):
        if not value.requires_grad:
            found.append(value)
    elif nesting and isinstance(value, (list, tuple)):
        for each in value:
            _collect(torch, each, found, nesting - 1)
    elif nesting and hasattr(value, "items"):
        for name in sorted(map(str, value)):
            _collect(torch, value[name], found, nesting - 1)


def _path(given: Any) -> str:
    return os.path.abspath(given) if isinstance(given, (str, os.PathLike)) else ""
