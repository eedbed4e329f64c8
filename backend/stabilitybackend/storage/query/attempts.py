"""The attempts of one run over each other, and the two branches of a fork, each with the reason of its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.schema.lineage import Segment
from stabilitybackend.schema.runs import STATUSES, RunStatus
from stabilitybackend.schema.series import AlignedCurve, Attempt, Attempts, Branches, BranchRow
from stabilitybackend.storage.archive.series import paired
from stabilitybackend.storage.query.downsampling import StoreReader
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.query import json_numbers, select
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["MAX_ATTEMPTS", "EndedBy", "attempts", "branches"]

#: Attempts over each other, newest ones: more lines can't be distinguished.
MAX_ATTEMPTS = 20
#: Rows behind a fork of which the difference is made: every one of them is read.
MAX_DIFFERENCE = 50_000
#: Points of the difference that are sent, evenly taken.
DIFFERENCE_POINTS = 2_000
#: Steps after the fork that the table of values has.
_TABLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, *(m * 10**e for e in range(3, 9) for m in (1, 2, 5))]


@dataclass(frozen=True, slots=True)
class EndedBy:
    """The incident that an attempt ended with: id, kind, the kind's label, and title."""

    incident_id: str
    kind: str
    short: str
    title: str


@dataclass(frozen=True, slots=True)
class _Line:
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    level: int


def attempts(
    store: StoreReader,
    lineage: LineageView,
    segments: Sequence[Segment],
    heads: Sequence[int],
    incidents: Mapping[int, EndedBy],
    status: RunStatus,
    request: SeriesRequest,
) -> Attempts:
    """Return the attempts, oldest first, each by its steps since its start, and a note about all of them.

    Args:
        segments: all of them, by id.
        heads: ids of those that became the head, in order, without the root.
        incidents: segment -> the incident at its end.
        status: of the run; a run that ended without being finished has ended its last attempt.
        request: metric and points of one line.
    """
    order = [one for one in dict.fromkeys([0, *heads]) if segments[one].last_step is not None]
    found, problems = list[Attempt](), list[str]()
    for segment_id in order[-MAX_ATTEMPTS:]:
        segment = segments[segment_id]
        later = order[order.index(segment_id) + 1 :]
        how, why = _end(segments[later[0]]) if later else (status, "")
        start = _start(segment)
        line, trouble = _line(store, lineage, replace(request, view="segment", segment=segment_id))
        problems += trouble
        by = incidents.get(segment_id)
        found.append(
            Attempt(
                segment=segment_id,
                label=segment.label,
                start_step=start,
                last_step=segment.last_step or 0,
                steps=(segment.last_step or 0) - start,
                ended=bool(later) or (STATUSES[status].ended and status != "finished"),
                how=how,
                why=why,
                incident_id=None if by is None else by.incident_id,
                kind=None if by is None else by.kind,
                title="" if by is None else by.title,
                curve=_curve(line, start),
            )
        )
    left_out = len(order) - len(found)
    return Attempts(request.metrics[0], _text(found, left_out, incidents, status), found, left_out, problems)


def branches(
    store: StoreReader,
    lineage: LineageView,
    segments: Sequence[Segment],
    fork: int,
    left: int | None,
    request: SeriesRequest,
) -> Branches:
    """Return the two branches of a fork, by their steps since the fork, and their difference.

    Args:
        fork: the segment that began at it. left: the segment whose later steps it repeats, None where there is none.
        request: metric and points of one line.

    Raises:
        BadRequest: the segment began at no fork.
    """
    if not 0 < fork < len(segments) or left is None or segments[fork].undone:
        known = ", ".join(str(one.id) for one in segments if one.label) or "none"
        raise BadRequest(
            f"fork is {fork}, expected a segment that began with a rollback or restart", hint=f"here: {known}"
        )
    at = segments[fork].fork_step or 0
    new = lineage.head if segments[fork].on_head_path else fork
    views = [_as_head(lineage, one) for one in (left, new)]
    asked = replace(request, start=at + 1)
    curves, problems = list[AlignedCurve](), list[str]()
    for view in views:
        line, trouble = _line(store, view, asked)
        curves.append(_curve(line, at))
        problems += trouble
    whole = replace(asked, stop=at + MAX_DIFFERENCE, points=None)
    old, now = (_line(store, view, whole)[0] for view in views)
    steps, (at_old, at_now) = paired([old.steps, now.steps])
    first, second = old.values[at_old], now.values[at_now]
    with np.errstate(invalid="ignore"):
        difference = second - first
    every = max(1, -(-len(steps) // DIFFERENCE_POINTS))
    rows = [
        BranchRow(int(steps[i]) - at, int(steps[i]), *json_numbers(np.array([first[i], second[i], difference[i]])))
        for i in _rows(steps - at)
    ]
    label = segments[fork].label or "the restart"
    return Branches(
        metric=request.metrics[0],
        label=label,
        fork_step=at,
        text=_difference_text(label, steps, difference, at),
        left=curves[0],
        right=curves[1],
        difference=AlignedCurve((steps - at)[::every].tolist(), json_numbers(difference[::every]), 0),
        table=rows,
        problems=problems,
    )


def _as_head(lineage: LineageView, segment: int) -> LineageView:
    """Return the lineage as if a segment were its head: its own past is effective."""
    path = tuple(lineage.path_of(segment))
    ends = {part.segment: part.last for part in path}
    limits = tuple(ends[one] if one in ends else lineage.forks[one] for one in range(len(lineage)))
    return replace(lineage, head=segment, path=path, limits=limits)


def _line(store: StoreReader, lineage: LineageView, request: SeriesRequest) -> tuple[_Line, list[str]]:
    answer = select(store, lineage, request)
    decided = [one for one in answer.series if not one.stray and not one.source]
    parts = sorted(decided, key=lambda one: (one.segment, one.dead))
    steps = np.concatenate([np.empty(0, np.int64), *(one.steps for one in parts)])
    values = np.concatenate([np.empty(0), *(one.values for one in parts)])
    order = np.argsort(steps, kind="stable")
    return _Line(steps[order], values[order], answer.level), answer.problems


def _curve(line: _Line, start: int) -> AlignedCurve:
    return AlignedCurve((line.steps - start).tolist(), json_numbers(line.values), line.level)


def _start(segment: Segment) -> int:
    """Return the step after which an attempt began; of the first one that before its first step."""
    if segment.fork_step is not None:
        return segment.fork_step
    return 0 if segment.first_step is None else segment.first_step - 1


def _end(next_one: Segment) -> tuple[str, str]:
    """Return how the attempt before a segment ended, in words, and the reason that was given."""
    if next_one.returns_to is not None:
        return "left for an older branch", next_one.reason
    how = {"command": "rolled back", "declared": "rolled back by the job"}.get(next_one.cause, "started again")
    return how, next_one.reason if next_one.cause in ("command", "declared") else ""


def _text(found: Sequence[Attempt], left_out: int, incidents: Mapping[int, EndedBy], status: RunStatus) -> str:
    ended = [one for one in found if one.ended]
    if not found:
        return "There is no attempt yet."
    total = len(found) + left_out
    words = [f"{total:,} attempt{'' if total == 1 else 's'}{f', the newest {len(found)} here' if left_out else ''}."]
    if ended:
        low, high = min(one.steps for one in ended), max(one.steps for one in ended)
        where = _steps(low) if low == high else f"between {low:,} and {_steps(high)}"
        kinds = {by.short for one in ended if (by := incidents.get(one.segment)) is not None}
        alike = len(kinds) == 1 and all(one.kind is not None for one in ended)
        count = "It" if total == 1 else "Each" if len(ended) == len(found) else f"{len(ended):,} of them"
        its = "its" if count in ("It", "Each") or len(ended) == 1 else "their"
        words.append(f"{count} ended {where} after {its} start{f', with a {kinds.pop()}' if alike else ''}.")
    live = [one for one in found if not one.ended]
    if live:
        which, does = "The newest one" if ended else "It", "finished" if status == "finished" else "is"
        words.append(f"{which} {does} {_steps(live[-1].steps)} after its start.")
    return " ".join(words)


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _rows(after: NDArray[np.int64]) -> list[int]:
    """Return the places of the steps that the table has: the last one at or before each distance, and the very last."""
    if not len(after):
        return []
    places = np.searchsorted(after, [one for one in _TABLE if one <= after[-1]], side="right") - 1
    return sorted({int(one) for one in places if one >= 0} | {len(after) - 1})


def _difference_text(label: str, steps: NDArray[np.int64], difference: NDArray[np.float64], at: int) -> str:
    finite = np.flatnonzero(np.isfinite(difference))
    if not len(finite):
        return f"The two branches of {label} have no step in common behind step {at:,}."
    largest = finite[np.argmax(np.abs(difference[finite]))]
    mean = float(difference[finite].mean())
    apart = f"{float(difference[largest]):+.4g}".replace("-", "\u2212")
    level = "the same on average" if mean == 0 else f"{abs(mean):.4g} {'higher' if mean > 0 else 'lower'} on average"
    return (
        f"Over {_steps(len(steps))} in common the branch that goes on is {level} than the one that was left; "
        f"they are furthest apart at step {int(steps[largest]):,} ({apart})."
    )
