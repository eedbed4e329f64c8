"""Builds the frames of a training job: what each rank logs, in the order in which it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

__all__ = ["Job"]


class Job:
    """One start of one rank; each call returns the frame that its agent would send.

    Args:
        rank: global rank.
        start: number of the start, so that a restarted rank is another source.
        world_size: ranks of the job.
    """

    def __init__(self, rank: int = 0, start: int = 1, world_size: int = 1) -> None:
        self.info = SourceInfo(
            source=f"r{rank}-{start}",
            rank=rank,
            world_size=world_size,
            local_rank=rank,
            node="n0",
            started=1000.0 * start,
        )
        self._seq = 0
        self._time = 1000.0 * start

    def _frame(self, block: PointsBlock | EventBlock, records: int) -> Frame:
        first, self._seq = self._seq + 1, self._seq + records
        return Frame(self.info, first, self._seq, [block])

    def rows(self, steps: Sequence[int], metrics: Mapping[str, Sequence[float]] | None = None) -> Frame:
        """Log ``metrics`` (default: ``loss`` with the value rank + step / 1e6 + start) at ``steps``."""
        metrics = metrics if metrics is not None else {"loss": [self.value(s) for s in steps]}
        times = [self._time + 0.1 * (i + 1) for i in range(len(steps))]
        self._time = times[-1]
        return self._frame(
            PointsBlock(
                list(metrics),
                np.array(steps, "<i8").tobytes(),
                np.array(times, "<f8").tobytes(),
                np.array([list(v) for v in metrics.values()], "<f8").tobytes(),
            ),
            len(steps),
        )

    def value(self, step: int) -> float:
        """Return a value that tells its rank, start and step."""
        return (self.info.rank or 0) + self.info.started + step / 1e6

    def event(self, kind: str, step: int | None = None, /, **data: Any) -> Frame:
        """Log an event."""
        self._time += 0.01
        return self._frame(EventBlock(kind, self._time, step, data), 1)

    def rolled_back(self, to_step: int, key: str, **data: Any) -> Frame:
        """Declare a rollback."""
        return self.event("segment", to_step, key=key, to_step=to_step, **data)

    @property
    def now(self) -> float:
        """Log time of the newest record, unix seconds."""
        return self._time

    def wait(self, seconds: float) -> None:
        """Let log time pass."""
        self._time += seconds
