"""Whether the loader went on where it was, by the position that it reports itself (``run.data(position=)``). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stabilitybackend.judging.batches.positions import Positions
from stabilitybackend.lineage.left_out import left_out
from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.schema.resumes import PositionCheck

__all__ = ["check_position"]


def check_position(
    positions: Positions,
    new: Sequence[PathRange],
    old: Sequence[PathRange] | None,
    fork_step: int,
    last_step: int,
    declared: Mapping[str, Any],
    *,
    same_ranks: bool,
) -> PositionCheck | None:
    """Return where the loader went on, None where it reports no position at all.

    Args:
        new, old: ranges of the branch that goes on, and of the one that was left (None: the job did not go back).
        last_step: the newest step that counts.
        declared: what was to change. same_ranks: as many as before: the position is that of one of them.
    """
    if not positions:
        return None
    saved, first = positions.newest(new, fork_step), positions.first_after(new, fork_step)
    if first is None or first[0] > last_step:
        return PositionCheck("not_seen", "no position was reported since", *(saved or ()))
    if saved is None:
        return PositionCheck("not_seen", f"no position was reported up to step {fork_step}", None, None, *first)
    step, now = first
    found = partial(PositionCheck, saved_step=saved[0], saved=saved[1], step=step, position=now)
    there = None if old is None else positions.on(old, step)
    if there == now:
        return found("goes_on", f"position {_n(now)} at step {step}, as on the branch that was left", by=0)
    was, distance, pace = saved[1], step - saved[0], positions.pace(new, fork_step)
    if isinstance(was, str) or isinstance(now, str):
        if there is not None:
            return found("elsewhere", f"position {now} at step {step}, where it was {there} before")
        return found("not_seen", "positions that are texts can only be compared at steps trained twice")
    if not same_ranks:
        return found("not_seen", "another number of ranks: one rank's positions can't be compared")
    if pace is None:
        return found("not_seen", "too few positions before the fork to know what a step takes")
    due, most = round(was + distance * pace.usual), was + distance * pace.most
    by, at = now - due, f"position {_n(now)} at step {step}, where {_n(due)} was due"
    if was + distance * pace.least <= now <= most:
        return found("goes_on", f"position {_n(now)} at step {step}, {_n(was)} at step {saved[0]}", by=0)
    if now > most:
        skip = left_out(declared, fork_step)
        count = 0 if skip is None or skip[0] > step else skip[1] - skip[0] + 1
        taken = distance + count
        if count and was + taken * pace.least <= now <= was + taken * pace.most:
            return found("skipped", f"{at}: {count} batches were left out as ordered", by=by, ordered=True)
        return found("skipped", f"{at}: {_n(by)} were left out", by=by)
    if now <= distance * pace.most:
        end = positions.highest_before_a_fall(new, fork_step)
        if end is not None and most > end:
            return found("not_seen", f"{at}, but a pass over the data ends there", by=by)
        return found("began_again", at, by=by)
    return found("repeats", f"{at}: {_n(-by)} come again", by=by)


def _n(position: int | str) -> str:
    return position if isinstance(position, str) else f"{position:,}"
