"""True place of a resumed leg: the step of the straight leg whose weights it began with.

The job's own step numbers can't be trusted for this, as they are one of the things that may not have been restored. So
everything is counted in rounds of the optimizer, and the weights say which round it was.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilityplugins.drill.trace import LegTrace, Note, RankTrace, State

__all__ = ["Alignment", "align", "label", "saves", "state_after"]

#: Weights at the start of the resumed leg: those of the checkpoint that it resumes from, older ones, those of a fresh
#: start, some that the stopped leg never had, or unseen ones.
WeightsFound = Literal["right", "older", "initial", "unknown", "unseen"]


class Alignment(msgspec.Struct):
    """How the resumed leg lies on the straight one.

    Args:
        saved: rounds of the stopped leg at its newest checkpoint.
        resumed: rounds before the resumed leg's first, by its weights, else by its step numbers.
        weights: whether its weights are those of ``resumed``. weights_of: the rounds whose weights they are, None for
            none.
        step_error: its step numbers minus the right ones, None where it logs none.
        again: it began from the first step, with nothing restored.
    """

    saved: int
    resumed: int
    weights: WeightsFound = "unseen"
    weights_of: int | None = None
    step_error: int | None = None
    again: bool = False


def saves(trace: LegTrace) -> list[int]:
    """Return after how many rounds the job had a whole checkpoint, in order.

    The client's reports count. A job that reports none is watched at ``torch.save``: a save is whole when the
    next round has begun, since the loop continued.
    """
    lead = trace.lead
    if lead is None:
        return sorted({step for step, _ in trace.checkpoints})
    reported = [note for one in trace.ranks.values() for note in one.notes if note.kind == "checkpoint" and note.round]
    if reported:
        return sorted({note.round for note in reported})
    written = {note.round for one in trace.ranks.values() for note in one.notes if note.kind == "save" and note.round}
    return sorted(rounds for rounds in written if rounds < len(lead.rounds))


def align(stopped: LegTrace, resumed: LegTrace) -> Alignment:
    """Return the place where the resumed leg continues the stopped one. Both have been seen by the probe."""
    before, after = stopped.lead, resumed.lead
    assert before is not None
    assert after is not None
    begin = after.begin
    assert begin is not None
    saved = saves(stopped)[-1]
    first = label(after, 1)
    same = [rounds for rounds in range(len(before.rounds), -1, -1) if _same_weights(stopped, resumed, rounds)]
    found = Alignment(saved, saved)
    by_step = None if first is None else _rounds_at(before, first - 1)
    if not same:
        found.weights = "unknown"
        found.resumed = by_step if by_step in saves(stopped) else saved
    else:
        found.weights_of = saved if saved in same else same[0]
        agrees = by_step is None or by_step == found.weights_of or by_step not in {0, *saves(stopped)}
        if found.weights_of == 0 and by_step in (0, None):
            found.again, found.resumed, found.weights = True, 0, "initial"
        elif found.weights_of == saved or (agrees and found.weights_of):
            found.resumed, found.weights = found.weights_of, "right"
        else:
            found.weights = "older" if found.weights_of else "initial"
            found.resumed = saved if by_step is None else by_step
    right = label(before, found.resumed)
    if first is not None and right is not None:
        found.step_error = first - (right + 1)
    return found


def label(rank: RankTrace, rounds: int) -> int | None:
    """Return the job's number of the step of round ``rounds``, by the nearest step that it logged; None without one."""
    logged = [note for note in rank.notes if note.kind == "log" and note.step is not None]
    if not logged:
        return None
    nearest: Note = min(logged, key=lambda note: abs(note.round - rounds))
    assert nearest.step is not None
    return nearest.step + rounds - nearest.round


def state_after(rank: RankTrace, rounds: int) -> State | None:
    """Return the state after so many rounds, 0 for the state at the process's start; None where unseen."""
    if rounds == 0:
        return rank.begin
    return rank.rounds[rounds - 1] if rounds <= len(rank.rounds) else None


def _rounds_at(rank: RankTrace, step: int) -> int | None:
    """Return after how many rounds the job calls the step ``step``, None where it never does."""
    return next((rounds for rounds in range(len(rank.rounds) + 1) if label(rank, rounds) == step), None)


def _same_weights(stopped: LegTrace, resumed: LegTrace, rounds: int) -> bool:
    """Whether the resumed leg began with the weights that the stopped one had after ``rounds``."""
    pairs = [(stopped.ranks[rank], one) for rank, one in resumed.ranks.items() if rank in stopped.ranks]
    states = [(state_after(before, rounds), after.begin) for before, after in pairs]
    if len(stopped.ranks) != len(resumed.ranks) and any(one is not None and one.sharded for _, one in states):
        return _same_norm(stopped, resumed, rounds)
    return all(old is not None and new is not None and old.weights == new.weights for old, new in states)


def _same_norm(stopped: LegTrace, resumed: LegTrace, rounds: int) -> bool:
    """The same for weights that are cut differently: squares of the same numbers, added up in another order."""
    before = [state_after(one, rounds) for one in stopped.ranks.values()]
    after = [one.begin for one in resumed.ranks.values()]
    old = sum(one.weights_norm**2 for one in before if one is not None)
    new = sum(one.weights_norm**2 for one in after if one is not None)
    #: float64 keeps 15 digits; two different states of a training agree in far fewer.
    return abs(old - new) <= 1e-11 * old
