"""Folds the frames of a past run with the code that folds live ones; returns the incidents it would have shown."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilityclient.wire import Frame, PointsBlock

__all__ = ["Backtest", "backtest"]


@dataclass(frozen=True, slots=True)
class Backtest:
    """Result of one run.

    Attributes:
        incidents: oldest first.
        state: the run after its last frame, for further questions.
        rows, points: that were judged or passed over; a row of twelve metrics has twelve points.
        seconds: wall time that it took, reading included.
        failures: exceptions of detectors, by detector; a detector that fails starts afresh.
        unreadable: events and blocks of points that could not be folded and were passed over, as the server does.
    """

    incidents: list[Incident]
    state: RunState
    rows: int
    points: int
    seconds: float
    failures: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0


def backtest(
    frames: Iterable[Frame],
    *,
    settings: Mapping[str, Mapping[str, float]] | None = None,
    run_id: str = "backtest",
    undone: Collection[str] = (),
) -> Backtest:
    """Return the findings of the detectors on a whole run.

    The frames go through ``RunState.apply`` as in the server, so that lineage, rollbacks, incidents and advice are the
    same. The clock is the run's own: the newest time that a frame carries. Nothing that needs a living job is judged
    (hangs, deaths, lost agents).

    Args:
        frames: of one run, in the order in which they were sent.
        settings: detector -> parameter -> value; missing ones have their defaults.
        run_id: goes into the incidents and their ids.
        undone: keys of inferred segments that a user undid.

    Raises:
        SettingError: a setting is unknown or out of range.
    """
    began = time.perf_counter()
    clock = _FrameClock()
    state = RunState(run_id, clock, undone)
    if settings:
        state.judge.configure(settings)
    rows = points = 0
    for frame in frames:
        for block in frame.blocks:
            if isinstance(block, PointsBlock) and block.steps:
                count = len(block.steps) // 8
                rows += count
                points += count * len(block.names)
                clock.reach(float(np.frombuffer(block.times, "<f8").max()))
        state.apply(frame, replayed=False)
    return Backtest(
        state.incidents.all()[::-1],
        state,
        rows,
        points,
        time.perf_counter() - began,
        dict(state.judge.failures),
        state.unreadable.passed_over,
    )


class _FrameClock:
    """Unix seconds of the run: the newest time in its frames."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def reach(self, moment: float) -> None:
        self.now = max(self.now, moment)

    def __call__(self) -> float:
        return self.now
