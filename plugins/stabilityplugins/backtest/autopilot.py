"""Actions of the autopilot in a past run: step, reason, and gain or loss against a person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stabilitybackend.acting.autopilot.ladder import decide
from stabilitybackend.acting.autopilot.policy import Policy
from stabilitybackend.acting.commands.abilities import AT_BOUNDARY, CHANGES
from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.runs.derived.autopilot import situation
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.job.autopilot import PilotEntry
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo
from stabilityplugins.backtest.sources import Log

__all__ = ["Assumed", "Flight", "Would", "fly"]

#: Rows between two looks of the autopilot.
ROWS = 8


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions about facts that a log lacks.

    Args:
        gpus: of the job.
        checkpoint_every: steps between two verified checkpoints, where the log has none of its own.
        reaction_s: seconds from an alarm until a person goes back as advised.
    """

    gpus: int = 1
    checkpoint_every: int = 250
    reaction_s: float = 600.0


@dataclass(slots=True)
class Would:
    """Something that it would have done.

    Attributes:
        entry: step, checkpoint, changes and reason.
        seen_step: at which the alarm was raised. person_step: at which a person would have been at it.
        end: the problem's end in the log, in words.
        steps: won (above 0) or lost (below 0), None for an alarm without an action.
        gpu_hours: the same in GPU-hours.
    """

    entry: PilotEntry
    seen_step: int
    person_step: int
    end: str = ""
    steps: int | None = None
    gpu_hours: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as a line of ``--json``."""
        one = self.entry
        return {
            "step": one.step, "action": one.action, "kind": one.kind, "onset_step": one.onset_step,
            "seen_step": self.seen_step, "to_step": one.to_step, "skip_range": one.skip_range,
            "lr_scale": one.lr_scale, "new_seed": one.seed is not None, "why": one.text,
            "person_step": self.person_step, "end": self.end, "steps_won": self.steps, "gpu_hours_won": self.gpu_hours,
        }  # fmt: skip


@dataclass(slots=True)
class Flight:
    """One log.

    Attributes:
        done: oldest first.
        step_s: seconds a step, as the log has it; 1 where it has no times.
        own_checkpoints: the log has some of its own, else they are assumed.
        error, hint: why nothing could be judged, empty where it could.
    """

    name: str
    done: list[Would] = field(default_factory=list)
    rows: int = 0
    step_s: float = 1.0
    own_checkpoints: bool = False
    error: str = ""
    hint: str = ""


def fly(
    log: Log, policy: Policy, assumed: Assumed, settings: Mapping[str, Mapping[str, float]] | None = None
) -> Flight:
    """Return the autopilot's actions. A fault of a file is in the answer, not raised.

    A log can't go back where it did not: after something that it would have done, nothing follows about that incident.

    Args:
        settings: detector -> parameter -> value.
    """
    try:
        flight = _fly(log, policy, assumed, settings, own=True)
        return flight if flight.own_checkpoints else _fly(log, policy, assumed, settings, own=False)
    except (StabilityBoardError, OSError) as error:
        hint = error.hint if isinstance(error, StabilityBoardError) else ""
        return Flight(log.name, error=str(error), hint=hint)


def _fly(
    log: Log, policy: Policy, assumed: Assumed, settings: Mapping[str, Mapping[str, float]] | None, *, own: bool
) -> Flight:
    from msgspec.structs import replace

    policy = replace(policy, dry_run=True)
    clock = _Clock()
    state = RunState(log.name, clock)
    if settings:
        state.judge.configure(settings)
    flight = Flight(log.name)
    entries: list[PilotEntry] = []
    open_ones: list[Would] = []
    source: SourceInfo | None = None
    saved = 0
    for frame in _cut(log.frames()):
        clock.reach(frame)
        state.apply(frame, replayed=False)
        if source is None and frame.source.rank is not None:
            source = frame.source
            able = ("handler", {"can": list(CHANGES), "branches": True}), ("obeys", {"orders": list(AT_BOUNDARY)})
            for kind, data in able:
                state.apply(_event(source, clock.now, kind, None, data), replayed=False)
        flight.rows += sum(len(block.steps) // 8 for block in frame.blocks if isinstance(block, PointsBlock))
        step = state.judge.newest_step
        every = assumed.checkpoint_every
        if not own and source is not None and step // every > saved // every:
            _save(state, source, clock.now, step // every * every)
        saved = step
        if not state.incidents.open_count():
            open_ones = _ended(open_ones, state, None)
            continue
        open_ones = _ended(open_ones, state, step)
        found = decide(situation(state, entries), policy)
        if found.entry is not None and all(one.entry_id != found.entry.entry_id for one in entries):
            entries.append(found.entry)
            would = _would(found.entry, state, assumed)
            flight.done.append(would)
            open_ones.append(would)
    _ended(open_ones, state, None)
    flight.step_s = state.job.view(for_command=False).step_time_s or 1.0
    flight.own_checkpoints = own and len(state.fold.checkpoints) > 0
    for one in flight.done:
        if one.steps is not None:
            one.gpu_hours = one.steps * flight.step_s * assumed.gpus / 3600.0
    return flight


def _save(state: RunState, source: SourceInfo, now: float, step: int) -> None:
    """Fold the events of a checkpoint that the log does not have."""
    path = f"assumed-{step}"
    state.apply(_event(source, now, "checkpoint", step, {"path": path}), replayed=False)
    seen = {"path": path, "kind": "file", "complete": True}
    state.apply(_event(source, now, "checkpoint_seen", step, seen), replayed=False)


def _would(entry: PilotEntry, state: RunState, assumed: Assumed) -> Would:
    lead = state.incidents.get(entry.incident_id)
    assert lead is not None
    step_s = state.job.view(for_command=False).step_time_s or 1.0
    return Would(entry, lead.step, lead.step + math.ceil(assumed.reaction_s / step_s))


def _ended(open_ones: Sequence[Would], state: RunState, step: int | None) -> list[Would]:
    """Note the ends of problems; return those still open. step: None at the end of the log."""
    left = []
    for one in open_ones:
        incident = state.incidents.get(one.entry.incident_id)
        if one.entry.action == "gave_up":
            one.end = "left to people"
        elif not _decided(one, incident, step):
            left.append(one)
    return left


def _decided(one: Would, incident: Incident | None, step: int | None) -> bool:
    """Note the problem's end, where it is decided by now."""
    at, to_step = one.entry.step, one.entry.to_step or 0
    late = one.person_step - at
    if incident is not None and incident.dead:
        gone = incident.rolled_back
        one.end = f"the job went back to step {gone.step:,}" if gone is not None else "the job went back"
        one.steps = max(0, min(late, incident.now_step - at))
        return True
    if incident is not None and incident.state == "recovered" and incident.recovered_step is not None:
        if incident.recovered_step < one.person_step:
            one.end = f"came back by itself at step {incident.recovered_step:,}: not needed"
            one.steps = -(at - to_step)
        else:
            one.end = f"still open when a person came at step {one.person_step:,}"
            one.steps = late
        return True
    if step is not None and step < one.person_step:
        return False
    if late <= 0:
        one.end, one.steps = f"a person would have been there before, at step {one.person_step:,}", 0
    elif step is None:
        one.end, one.steps = f"open at the end of the log; a person comes at step {one.person_step:,}", late
    else:
        one.end, one.steps = f"still open when a person came at step {one.person_step:,}", late
    return True


class _Clock:
    """Unix seconds of the run: the newest time in its frames."""

    now = 0.0

    def reach(self, frame: Frame) -> None:
        for block in frame.blocks:
            if isinstance(block, PointsBlock) and block.times:
                self.now = max(self.now, float(np.frombuffer(block.times, "<f8").max()))

    def __call__(self) -> float:
        return self.now


def _event(source: SourceInfo, time: float, kind: str, step: int | None, data: dict[str, Any]) -> Frame:
    return Frame(source, 0, 0, [EventBlock(kind, time, step, data)])


def _cut(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield the same in frames of a few rows each: it looks between two of them."""
    for frame in frames:
        for block in frame.blocks:
            if not isinstance(block, PointsBlock):
                yield Frame(frame.source, frame.first_seq, frame.last_seq, [block])
                continue
            rows = len(block.steps) // 8
            values = np.frombuffer(block.values, "<f8").reshape(len(block.names), rows)
            for first in range(0, rows, ROWS):
                span = slice(8 * first, 8 * min(first + ROWS, rows))
                part = np.ascontiguousarray(values[:, first : first + ROWS]).tobytes()
                piece = PointsBlock(block.names, block.steps[span], block.times[span], part)
                yield Frame(frame.source, frame.first_seq, frame.last_seq, [piece])
