"""Record of this process's training state at each step of its first optimizer: a JSON object a line.

A *round* is one call of ``step()`` of the optimizer that was made first. Before it the batch, the loss, the gradients,
the rates and the random numbers are there; after it the new weights and the optimizer's state. Lines go to
``<folder>/<pid>.jsonl`` and are whole on disk before training continues, so a killed job leaves all of its rounds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import weakref
from typing import Any

from .digests import MAX_ROWS, Totals, of_rows, of_text

__all__ = ["Recorder"]

#: Scalars of a loss that wait for the next round; more calls of backward() are summed up to here.
_MAX_LOSSES = 1024


class Recorder:
    """State of the probe in one process.

    Args:
        torch: the job's module.
        folder: where the lines go.
        enough: when to wait before the next step for the drill to end the job, so that a fast one does not run on:
            ``rounds:<n>`` after n rounds, ``saved:<n>`` after a checkpoint that the job reported at or after n rounds.
        drill: process id of the drill; without it a waiting job ends by itself.
    """

    def __init__(self, torch: Any, folder: str, enough: str = "", drill: int = 0) -> None:
        self._torch = torch
        kind, _, number = enough.partition(":")
        self._last_round = int(number) if kind == "rounds" else 0
        self._least_saved = int(number) if kind == "saved" else 0
        self._saved = 0
        self._drill = drill
        self._folder = folder
        self._pid = 0
        self._file: Any = None
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        self.scalers: list[Any] = []
        self._roots: list[Any] = []
        self._rows: list[int] = []
        self._losses: list[Any] = []
        self._rounds = 0
        self._noted_step: int | None = None
        self._named = False

    def no_grad(self) -> Any:
        """Return the context in which the probe computes."""
        return self._torch.no_grad()

    # --- the job's actions ---------------------------------------------------------------------------------------

    def took_batch(self, module: Any, tensors: list[Any]) -> None:
        """Note the inputs of a call of an outermost module: the batch."""
        if not any(ref() is module for ref in self._roots):
            self._roots.append(weakref.ref(module))
        if len(self._rows) < MAX_ROWS:
            self._rows += of_rows(self._torch, tensors)

    def took_loss(self, loss: Any) -> None:
        """Note the loss of a ``backward()``."""
        if loss.numel() == 1 and len(self._losses) < _MAX_LOSSES:
            self._losses.append(loss.detach().clone())

    def before_step(self, optimizer: Any) -> None:
        """Write the state before an optimizer's step, and a fresh process's initial state."""
        if optimizer is not self._first():
            return
        rates = [float(group["lr"]) for each in self._all() for group in each.param_groups if "lr" in group]
        if not self._rows and not self._losses and not any(rates):
            return  # torch.distributed.checkpoint steps so to make the state of a fresh optimizer: no training
        if 0 < self._last_round <= self._rounds or 0 < self._least_saved <= self._saved:
            self._wait()
        if self._rounds == 0:
            self._write(self._who() | {"kind": "begin", **self._state()})
        params = self._params()
        grads = Totals(self._torch)
        for param in params:
            if param.grad is not None:
                grads.add(param.grad)
        sums, square = grads.read()
        self._round = {
            "kind": "round",
            "round": self._rounds + 1,
            "rates": rates,
            "hyper": of_text([_plain(group) for each in self._all() for group in each.param_groups]),
            "schedules": [int(getattr(each(), "last_epoch", -1)) for each in self.schedulers if each() is not None],
            "scaler": of_text([each().state_dict() for each in self.scalers if each() is not None]),
            "scalers": sum(each() is not None for each in self.scalers),
            "rng": self._random_numbers(),
            "rows": self._rows,
            "loss": sum(float(loss) for loss in self._losses) if self._losses else None,
            "grads": of_text(sums),
            "grad_norm": square**0.5,
            "buffers": self._buffers(),
        }
        self._rows, self._losses = [], []

    def after_step(self, optimizer: Any) -> None:
        """Write the round: the state before it, and weights and state now."""
        if optimizer is not self._first() or self._round is None:
            return
        self._rounds += 1
        self._write({**self._round, **self._state()})
        self._round = None
        self._rows, self._losses = [], []  # of further calls of a closure
        if not self._named:
            self._named = True
            self._write({"kind": "names", "params": self._names()})

    def note(self, kind: str, step: int | None, path: str = "") -> None:
        """Write that the job logged a step, reported a checkpoint or saved something, after so many rounds."""
        if kind == "log":
            if step == self._noted_step:
                return
            self._noted_step = step
        if kind == "checkpoint":
            self._saved = self._rounds
        if self._rounds or kind != "save":
            self._write({"kind": kind, "step": step, "round": self._rounds, "path": path})

    def trouble(self, text: str) -> None:
        """Write why something could not be seen."""
        self._write({"kind": "trouble", "text": text})

    # --- parts of the state --------------------------------------------------------------------------------------

    _round: dict[str, Any] | None = None

    def _wait(self) -> None:
        """Wait to be ended; the drill sees by the lines written so far that it is enough."""
        while True:
            try:
                os.kill(self._drill, 0)
            except OSError:
                os._exit(1)  # the drill was killed itself: nothing else would end this process
            time.sleep(0.1)

    def _all(self) -> list[Any]:
        return [each() for each in self.optimizers if each() is not None]

    def _first(self) -> Any:
        known = self._all()
        return known[0] if known else None

    def _params(self) -> list[Any]:
        seen: dict[int, Any] = {}
        for optimizer in self._all():
            for group in optimizer.param_groups:
                seen.update({id(param): param for param in group["params"]})
        return list(seen.values())

    def _state(self) -> dict[str, Any]:
        """Return checksums of each weight, and of each kind of number that the optimizers keep for them."""
        weights, kept = Totals(self._torch), dict[str, Totals]()
        for param in self._params():
            weights.add(param)
        for optimizer in self._all():
            for group in optimizer.param_groups:
                for param in group["params"]:
                    for name, value in optimizer.state.get(param, {}).items():
                        found = kept.setdefault(str(name), Totals(self._torch))
                        if self._torch.is_tensor(value):
                            found.add(value)
                        elif isinstance(value, (int, float)):
                            found.add(self._torch.tensor(float(value), dtype=self._torch.float64))
        sums, square = weights.read()
        optim = {name: found.read() for name, found in sorted(kept.items())}
        return {
            "weights": sums,
            "weights_norm": square**0.5,
            "optim": {name: of_text(each) for name, (each, _) in optim.items()},
            "optim_norm": {name: norm**0.5 for name, (_, norm) in optim.items()},
            "sharded": any(_is_sharded(param) for param in self._params()),
        }

    def _buffers(self) -> str:
        found = Totals(self._torch)
        seen: set[int] = set()
        for root in self._live_roots():
            for buffer in root.buffers():
                if id(buffer) not in seen and buffer.numel():
                    seen.add(id(buffer))
                    found.add(buffer)
        return of_text(found.read()[0])

    def _live_roots(self) -> list[Any]:
        return [root for root in (ref() for ref in self._roots) if root is not None]

    def _names(self) -> list[str]:
        names: dict[int, str] = {}
        for root in self._live_roots():
            for name, param in root.named_parameters():
                names.setdefault(id(param), name.replace("module.", "").replace("_orig_mod.", ""))
        return [names.get(id(param), "") for param in self._params()]

    def _random_numbers(self) -> dict[str, str]:
        found = {"python": of_text(random.getstate())}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            state = numpy.random.get_state()
            found["numpy"] = of_text((state[0], state[1].tolist(), *state[2:]))
        found["torch"] = of_text(self._torch.get_rng_state().tolist())
        if self._torch.cuda.is_initialized():
            found["cuda"] = of_text(self._torch.cuda.get_rng_state().tolist())
        return found

    def _who(self) -> dict[str, Any]:
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world = distributed.get_rank(), distributed.get_world_size()
        else:
            rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
            world = int(os.environ.get("WORLD_SIZE") or 1)
        return {"pid": os.getpid(), "rank": int(rank), "world": int(world), "torch": str(self._torch.__version__)}

    def _write(self, line: dict[str, Any]) -> None:
        if self._pid != os.getpid():  # also after a fork: each process has a file of its own
            self._pid = os.getpid()
            os.makedirs(self._folder, exist_ok=True)
            self._file = open(os.path.join(self._folder, f"{self._pid}.jsonl"), "a")  # noqa: SIM115 open for good
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _plain(group: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of a group of parameters, without the rate, which has a place of its own."""
    return sorted((name, str(value)) for name, value in group.items() if name not in ("params", "lr", "initial_lr"))


def _is_sharded(param: Any) -> bool:
    return any(getattr(place, "dim", None) is not None for place in getattr(param, "placements", ()))
