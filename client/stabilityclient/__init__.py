"""Streams a training run to Stabilityboard without ever harming the training process.

    run = stabilityclient.init(project="llm", name="7b")
    for step in run.steps(0, 1000):
        run.log(step, {"loss": loss})
    run.finish()

Importing this package loads the standard library only and does nothing: no thread, no file, no read of the environment.
"""

from __future__ import annotations

from stabilityclient.errors import NotReadyError, RefusedError, SettingError, StabilityError
from stabilityclient.init_run import init
from stabilityclient.plan import read_plan
from stabilityclient.rollback.decision import Rewind, Rollback, Stop
from stabilityclient.run import Run

__all__ = [
    "NotReadyError",
    "RefusedError",
    "Rewind",
    "Rollback",
    "Run",
    "SettingError",
    "StabilityError",
    "Stop",
    "__version__",
    "init",
    "read_plan",
]

__version__ = "0.1.0"
