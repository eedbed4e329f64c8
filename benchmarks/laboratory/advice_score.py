"""Follows the advice through a run as people would get it: which checkpoint it names, and whether that is from before.

The log is given ten rows at a time, with a checkpoint each so many steps, and the advice of every open incident is read
after each. A checkpoint is clean where nothing was wrong yet when it was saved, or no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from labelled_logs import Labelled

__all__ = ["ADVISED_KINDS", "Advised", "advice_of", "is_clean", "with_checkpoints"]

#: Rows that are given at once: the advice is read after each.
ROWS_AT_ONCE = 10
#: Steps between two checkpoints, as the laboratory's job saves them.
CHECKPOINT_STEPS = 100
#: Kinds of events that make a checkpoint sick.
ADVISED_KINDS = ("spike", "divergence", "nonfinite", "level_shift", "resume_artifact", "data_mix_drift", "repeat_data")


@dataclass(frozen=True)
class Advised:
    """One incident that a rollback was advised for.

    Args:
        kind, onset_step: of the incident.
        steps: (newest step then, checkpoint that was advised), each time that it changed.
    """

    kind: str
    onset_step: int
    steps: tuple[tuple[int, int], ...]


def advice_of(path: Path, every: int = CHECKPOINT_STEPS) -> list[Advised]:
    """Return the rollbacks that were advised while the log was read, by incident.

    Args:
        path: of a log. every: steps between two checkpoints.
    """
    from stabilitybackend.runs.state import RunState
    from stabilityplugins.backtest.sources import read_files

    now = [0.0]
    state = RunState("advice", lambda: now[0])
    advised: dict[str, tuple[Any, list[tuple[int, int]]]] = {}
    newest = 0
    for frame, step, time in with_checkpoints(next(iter(read_files([path]))).frames(), every):
        now[0], newest = max(now[0], time), max(newest, step)
        state.apply(frame, replayed=False)
        for one in state.incidents.all():
            advice = one.suggestion
            if advice is None or advice.action != "roll_back" or advice.to_step is None or one.state != "open":
                continue
            _, said = advised.setdefault(one.incident_id, (one, []))
            if not said or said[-1][1] != advice.to_step:
                said.append((newest, advice.to_step))
    return [Advised(one.kind, one.onset_step, tuple(said)) for one, said in advised.values()]


def is_clean(log: Labelled, advised: Advised) -> bool:
    """Return whether every checkpoint that was advised is from before or after all that was wrong by then."""
    wrong = [event for event in log.events if event.alarm and event.kind in ADVISED_KINDS]
    return not any(
        event.first <= checkpoint and event.first <= now and (event.recovered is None or checkpoint < event.recovered)
        for now, checkpoint in advised.steps
        for event in wrong
    )


def with_checkpoints(frames: Iterator[Any], every: int) -> Iterator[tuple[Any, int, float]]:
    """Yield the frames in pieces of a few rows, each with its newest step and time, and checkpoints between them."""
    from stabilityclient.wire import EventBlock, Frame, PointsBlock

    seq: dict[str, int] = {}
    for frame in frames:
        for block in frame.blocks:
            first = seq.get(frame.source.source, 0) + 1
            if not isinstance(block, PointsBlock):
                seq[frame.source.source] = first
                yield Frame(frame.source, first, first, [block]), block.step or 0, block.time
                continue
            steps, times = np.frombuffer(block.steps, "<i8"), np.frombuffer(block.times, "<f8")
            values = np.frombuffer(block.values, "<f8").reshape(len(block.names), -1)
            passed = np.flatnonzero(steps[1:] // every > steps[:-1] // every) + 1
            edges = sorted({0, len(steps), *range(0, len(steps), ROWS_AT_ONCE), *passed.tolist()})
            for start, stop in pairwise(edges):
                first = seq.get(frame.source.source, 0) + 1
                piece = PointsBlock(
                    block.names,
                    steps[start:stop].tobytes(),
                    times[start:stop].tobytes(),
                    np.ascontiguousarray(values[:, start:stop]).tobytes(),
                )
                blocks: list[Any] = [piece]
                if start in passed and not frame.source.rank:
                    saved = int(steps[start]) // every * every
                    data = {"path": f"checkpoint-{saved}"}
                    at = EventBlock("checkpoint", float(times[start]), saved, data)
                    # A checkpoint is saved after the row of its step, which may be the first one here.
                    blocks = [at, piece] if saved < steps[start] else [_part(piece, 0, 1), at, _part(piece, 1, None)]
                seq[frame.source.source] = first + stop - start - 1 + (len(blocks) > 1)
                kept = [one for one in blocks if not isinstance(one, PointsBlock) or one.steps]
                some = Frame(frame.source, first, seq[frame.source.source], kept)
                yield some, int(steps[stop - 1]), float(times[stop - 1])


def _part(block: Any, start: int, stop: int | None) -> Any:
    from stabilityclient.wire import PointsBlock

    steps = np.frombuffer(block.steps, "<i8")[start:stop]
    times = np.frombuffer(block.times, "<f8")[start:stop]
    values = np.frombuffer(block.values, "<f8").reshape(len(block.names), -1)[:, start:stop]
    return PointsBlock(block.names, steps.tobytes(), times.tobytes(), np.ascontiguousarray(values).tobytes())
