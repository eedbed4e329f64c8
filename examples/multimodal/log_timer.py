"""Measures what a call of ``run.log`` costs the training thread; only with --measure-log-calls."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

__all__ = ["LogTimer"]

#: Newest calls that are kept; bounds the memory of a long run to under 1 MB.
_MAX_CALLS = 100_000


class LogTimer:
    """Stands in for ``run.log`` and keeps how long each call took, in microseconds."""

    def __init__(self, log: Callable[[int, Mapping[str, float]], None]) -> None:
        self._log = log
        self._calls_us: deque[float] = deque(maxlen=_MAX_CALLS)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        started = time.perf_counter_ns()
        self._log(step, metrics)
        self._calls_us.append((time.perf_counter_ns() - started) / 1000)

    def write(self, path: Path) -> None:
        """Write p50, p99 (us) and the number of calls as JSON."""
        p50, p99 = np.percentile(self._calls_us, [50, 99]) if self._calls_us else (None, None)
        path.write_text(json.dumps({"p50": p50, "p99": p99, "count": len(self._calls_us)}))
