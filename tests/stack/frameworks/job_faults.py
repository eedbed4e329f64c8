"""What happens to a job of this folder from step 60 on, on its last rank, if ``FAULT`` says so.

``kill``: SIGKILL. ``raise``: an exception of the model. ``slow``: its steps take 0.3 s longer. ``loader``: the loader
hands out nothing more. ``rate``, from the start and on all ranks: the job sets the learning rate itself at each step.

``KILLED_AT`` names a step: SIGKILL when it has been trained the second time, after a rollback.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

__all__ = ["in_the_loader", "in_the_model", "trained"]

_FAULT = os.environ.get("FAULT", "")
_AT = 60
_KILLED_AT = int(os.environ.get("KILLED_AT", "0"))
_LAST = int(os.environ.get("RANK", "0")) == int(sys.argv[2]) - 1


def in_the_loader(step: int) -> None:
    """Hang where that is to happen; called for each sample."""
    while _FAULT == "loader" and _LAST and step >= _AT:
        time.sleep(1.0)


def in_the_model(step: int, optimizer: Any) -> None:
    """Let happen what is to happen within a step; called in each forward pass."""
    if _FAULT == "rate":
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
    if _LAST and step >= _AT:
        if _FAULT == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if _FAULT == "raise":
            raise ArithmeticError("of the job")
        if _FAULT == "slow":
            time.sleep(0.3)


def trained(step: int) -> None:
    """Die where that is to happen; called when a step was trained."""
    _trained.append(step)
    if _LAST and step == _KILLED_AT and _trained.count(step) == 2:
        os.kill(os.getpid(), signal.SIGKILL)


_trained: list[int] = []
